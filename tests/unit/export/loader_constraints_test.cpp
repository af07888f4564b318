// The table of loaders: who takes what, and the reason given otherwise.
#include "export/loader_constraints.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/export/tiny_checkpoint.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<PlannedModule> block(const QuantScheme& scheme, std::int64_t width) {
  std::vector<PlannedModule> modules;
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                           "mlp.gate_proj", "mlp.up_proj"})
    modules.push_back({fmt::format("model.layers.0.{}", name), scheme, width, width});
  modules.push_back({"model.layers.0.mlp.down_proj", scheme, width, width});
  return modules;
}

LoaderVerdict verdict(const std::string& format, std::span<const PlannedModule> modules,
                      const std::string& loader) {
  for (const LoaderVerdict& one : loader_verdicts(format, modules, "out/x"))
    if (one.loader.find(loader) != std::string::npos) return one;
  ADD_FAILURE() << loader << " is not in the table";
  return {};
}

TEST(LoaderConstraints, MarlinTakesWhatItsSourceSays) {
  const LoaderVerdict fits = verdict("compressed-tensors", block(scheme_of(4, 128, false), 1024), "vLLM");
  EXPECT_TRUE(fits.fits);
  EXPECT_EQ(fits.command, "vllm serve out/x");
  EXPECT_TRUE(verdict("compressed-tensors", block(scheme_of(8, 0, true), 1024), "vLLM").fits);
  EXPECT_TRUE(verdict("awq", block(scheme_of(4, 64, false, DType::kF16), 1024), "vLLM").fits);
}

TEST(LoaderConstraints, MarlinRefusesWithTheFirstLinearAndTheFigure) {
  EXPECT_THAT(verdict("compressed-tensors", block(scheme_of(4, 64, false), 576), "vLLM").reason,
              "model.layers.0.self_attn.q_proj has 576 input features, and Marlin wants a multiple of 128");
  EXPECT_THAT(verdict("compressed-tensors", block(scheme_of(4, 16, false), 1024), "vLLM").reason,
              HasSubstr("group size 16"));
  EXPECT_THAT(verdict("compressed-tensors", block(scheme_of(8, 128, false), 1024), "vLLM").reason,
              HasSubstr("8-bit asymmetric"));
  EXPECT_THAT(verdict("compressed-tensors", block(scheme_of(3, 128, true), 1024), "vLLM").reason,
              HasSubstr("3-bit symmetric"));
  std::vector<PlannedModule> narrow = block(scheme_of(4, 128, true), 1024);
  narrow[1].out_features = 96;
  EXPECT_THAT(verdict("compressed-tensors", narrow, "vLLM").reason, HasSubstr("96 output features"));
}

TEST(LoaderConstraints, FusedLinearsMustAgree) {
  std::vector<PlannedModule> modules = block(scheme_of(4, 128, true), 1024);
  modules[2].scheme = scheme_of(8, 128, true);
  EXPECT_THAT(verdict("compressed-tensors", modules, "vLLM").reason, HasSubstr("different schemes"));
  EXPECT_TRUE(verdict("compressed-tensors", modules, "Transformers").fits);
  modules = block(scheme_of(4, 128, true), 1024);
  modules.back().scheme = scheme_of(8, 128, true);  // down_proj stands alone
  EXPECT_TRUE(verdict("compressed-tensors", modules, "vLLM").fits);
  modules.erase(modules.begin() + 4);  // gate_proj left dense
  EXPECT_THAT(verdict("compressed-tensors", modules, "vLLM").reason, HasSubstr("gate_up_proj"));
}

TEST(LoaderConstraints, TransformersTakesAsymmetricCodesDequantizedAndUniform) {
  std::vector<PlannedModule> modules = block(scheme_of(4, 64, true), 576);
  EXPECT_THAT(verdict("compressed-tensors", modules, "Transformers").command, Not(HasSubstr("dequantize")));
  modules.back().scheme = scheme_of(8, 0, true);
  EXPECT_THAT(verdict("compressed-tensors", modules, "Transformers").command, Not(HasSubstr("dequantize")));
  modules.back().scheme = scheme_of(4, 64, false);
  EXPECT_THAT(verdict("compressed-tensors", modules, "Transformers").reason, HasSubstr("one scheme"));
  EXPECT_THAT(verdict("compressed-tensors", block(scheme_of(4, 64, false), 576), "Transformers").command,
              HasSubstr("dequantize=True"));
  EXPECT_EQ(loader_verdicts("compressed-tensors", modules, "x").size(), 2u);
}

TEST(LoaderConstraints, GptqModelTakesItsGroups) {
  EXPECT_TRUE(verdict("awq", block(scheme_of(4, 64, false, DType::kF16), 576), "GPTQModel").fits);
  EXPECT_FALSE(verdict("awq", block(scheme_of(4, 48, false, DType::kF16), 576), "GPTQModel").fits);
}

}  // namespace
}  // namespace llmq::testing

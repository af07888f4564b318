// The table of loaders: who takes what, and the reason given otherwise.
#include "export/formats/loader_constraints.h"

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

TEST(LoaderConstraints, RoundedInputsHaveKernelsOfTheirOwn) {
  QuantScheme scheme = scheme_of(8, 0, true);
  scheme.activation_bits = 8;
  scheme.activation_scale = ActivationScale::kToken;
  EXPECT_TRUE(verdict("compressed-tensors", block(scheme, 576), "INT8").fits);
  EXPECT_TRUE(verdict("compressed-tensors", block(scheme, 576), "Transformers").fits);
  EXPECT_EQ(loader_verdicts("compressed-tensors", block(scheme, 576), "x").size(), 2u);  // no word of Marlin
  scheme.symmetric = false;
  EXPECT_THAT(verdict("compressed-tensors", block(scheme, 576), "INT8").reason,
              HasSubstr("8-bit asymmetric"));
  EXPECT_TRUE(verdict("compressed-tensors", block(scheme, 576), "Transformers").fits);
  QuantScheme groups = scheme_of(4, 64, true);
  groups.activation_bits = 8;
  EXPECT_FALSE(verdict("compressed-tensors", block(groups, 576), "INT8").fits);
  scheme.symmetric = true;
  scheme.weight_type = WeightType::kFloat8;
  EXPECT_TRUE(verdict("compressed-tensors", block(scheme, 576), "FP8").fits);
  // A linear of weights alone beside them is Marlin's.
  std::vector<PlannedModule> mixed = block(scheme, 576);
  mixed.back().scheme = scheme_of(4, 64, true);
  EXPECT_TRUE(verdict("compressed-tensors", mixed, "FP8").fits);
  EXPECT_THAT(verdict("compressed-tensors", mixed, "Marlin").reason, HasSubstr("576 input features"));
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

// in, out, bits, group, symmetric -> the loader that vLLM's verdict names, or the reason it gives.
struct VllmCase {
  const char* format;
  std::int64_t in, out;
  int bits, group;
  bool symmetric, reordered;
  const char* says;
};

TEST(LoaderConstraints, VllmTakesEachGptqCheckpointWithTheKernelItHas) {
  const VllmCase cases[] = {
      {"gptq", 1024, 1024, 4, 128, true, false, "Marlin"},
      {"gptq_v2", 1024, 1024, 4, 128, true, false, "Marlin"},
      {"gptq", 1024, 1024, 8, 0, true, true, "Marlin"},
      {"gptq", 1024, 1024, 4, 128, true, true, "Marlin"},
      {"gptq", 576, 512, 8, 0, true, false, "AllSpark"},
      {"gptq", 576, 512, 8, 0, true, true, "Machete"},
      {"gptq", 576, 512, 4, 64, true, false, "Machete"},
      {"gptq", 576, 1536, 4, 32, true, false, "gptq kernel, FP16"},
      {"gptq_v2", 1024, 1024, 4, 128, false, false, "gptq kernel, FP16"},
      {"gptq", 1024, 1024, 3, 128, true, false, "gptq kernel, FP16"},
      {"gptq", 1024, 96, 4, 128, true, false,
       "has 96 output features, and vLLM's gptq kernel wants a multiple of 64"},
      {"compressed-tensors", 1024, 1024, 4, 128, true, true,
       "the columns of model.layers.0.self_attn.q_proj carry their own group, which compressed-tensors 0.19 "
       "and later do not read"},
      {"compressed-tensors", 576, 576, 8, 0, true, false, "AllSpark"},
      {"compressed-tensors", 576, 512, 4, 64, true, false, "Machete"},
  };
  for (const VllmCase& one : cases) {
    SCOPED_TRACE(fmt::format("{} {} x {} w{} g{}", one.format, one.in, one.out, one.bits, one.group));
    std::vector<PlannedModule> modules =
        block(scheme_of(one.bits, one.group, one.symmetric, DType::kF16), 1024);
    for (PlannedModule& m : modules)
      m.in_features = one.in, m.out_features = one.out, m.column_groups = one.reordered;
    const LoaderVerdict found = verdict(one.format, modules, "vLLM");
    EXPECT_THAT(found.fits ? found.loader : found.reason, HasSubstr(one.says));
  }
}

TEST(LoaderConstraints, GptqModelTakesGptqOfItsBitsAndGroups) {
  for (const int bits : {2, 3, 4, 8})
    for (const bool symmetric : {true, false})
      EXPECT_TRUE(
          verdict("gptq_v2", block(scheme_of(bits, 16, symmetric, DType::kF16), 576), "GPTQModel").fits);
  EXPECT_THAT(verdict("gptq", block(scheme_of(4, 48, true, DType::kF16), 576), "GPTQModel").reason,
              HasSubstr("group size 48, and GPTQModel wants one of -1, 16, 32, 64, 128, 256, 512, 1024"));
  EXPECT_EQ(loader_verdicts("gptq", block(scheme_of(4, 48, true, DType::kF16), 576), "x").size(), 3u);
}

TEST(LoaderConstraints, ReorderedColumnsMustAgreeWhereLinearsAreFused) {
  std::vector<PlannedModule> modules = block(scheme_of(4, 128, true, DType::kF16), 1024);
  modules[0].column_groups = true;
  EXPECT_THAT(verdict("gptq", modules, "vLLM").reason, HasSubstr("different schemes"));
}

}  // namespace
}  // namespace llmq::testing

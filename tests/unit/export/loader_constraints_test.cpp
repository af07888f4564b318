// The table of loaders: who takes what, and the reason given otherwise.
#include "export/formats/loader_constraints.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "tests/unit/export/named_scheme.h"
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
                      const std::string& loader, const BesidePacked& beside = {}) {
  for (const LoaderVerdict& one : loader_verdicts(format, modules, "out/x", beside))
    if (one.loader.find(loader) != std::string::npos) return one;
  ADD_FAILURE() << loader << " is not in the table";
  return {};
}

// Not gtest's matcher of a regex: glibc's regexec waits for ever where clang's AddressSanitizer stands before
// it.
TEST(LoaderConstraints, VerdictsNameTheVersionTheySpeakOf) {
  const std::regex kVersion(R"([0-9]\.[0-9])");
  for (const char* format : {"compressed-tensors", "awq", "gptq", "gptq_v2", "safetensors"})
    for (const LoaderVerdict& one :
         loader_verdicts(format, block(scheme_of(4, 128, true, DType::kF16), 1024), "x"))
      EXPECT_TRUE(std::regex_search(one.loader, kVersion)) << format << ": " << one.loader;
}

TEST(LoaderConstraints, MarlinTakesWhatItsSourceSays) {
  const LoaderVerdict fits = verdict("compressed-tensors", block(scheme_of(4, 128, false), 1024), "vLLM");
  EXPECT_TRUE(fits.fits);
  EXPECT_EQ(fits.command, "vllm serve out/x");
  EXPECT_EQ(fits.note, "");
  EXPECT_TRUE(verdict("compressed-tensors", block(scheme_of(8, 0, true), 1024), "vLLM").fits);
  EXPECT_TRUE(verdict("awq", block(scheme_of(4, 64, false, DType::kF16), 1024), "vLLM").fits);
}

TEST(LoaderConstraints, TransformersReadsAllExpertsByOneScheme) {
  std::vector<PlannedModule> modules;
  for (const int layer : {0, 1})
    for (const char* part : {"gate_proj", "up_proj", "down_proj"})
      modules.push_back(
          {fmt::format("model.layers.{}.mlp.experts.0.{}", layer, part), scheme_of(4, 32, true), 1024, 1024});
  EXPECT_TRUE(verdict("compressed-tensors", modules, "Transformers").fits);
  for (std::size_t i = 3; i < modules.size(); ++i) modules[i].scheme = scheme_of(8, 32, true);
  const LoaderVerdict found = verdict("compressed-tensors", modules, "Transformers");
  EXPECT_FALSE(found.fits);
  EXPECT_THAT(found.reason, HasSubstr("reads the experts of all layers by one scheme"));
  EXPECT_TRUE(verdict("compressed-tensors", modules, "vLLM").fits) << "which has one for each layer";
}

// SmolLM2's widths.
TEST(LoaderConstraints, ShapesThatAreNoWholeTilesLoadAndAreSlower) {
  std::vector<PlannedModule> modules = block(scheme_of(4, 64, true), 576);
  modules[1].out_features = modules[2].out_features = 192;
  const LoaderVerdict found = verdict("compressed-tensors", modules, "vLLM");
  EXPECT_TRUE(found.fits) << found.reason;
  EXPECT_EQ(found.note,
            "model.layers.0.mlp.down_proj (576 x 576) is padded with zeros to whole tiles of Marlin's there, "
            "which is slower");
  // q, k and v are one linear of 256 outputs there, and none of them alone fills its tiles.
  modules = block(scheme_of(4, 64, true), 1024);
  modules[0].out_features = modules[2].out_features = 96;
  modules[1].out_features = 64;
  EXPECT_EQ(verdict("compressed-tensors", modules, "vLLM").note, "");
  modules[1].out_features = 96;
  EXPECT_THAT(verdict("compressed-tensors", modules, "vLLM").note, HasSubstr("qkv_proj (288 x 1024)"));
  modules.erase(modules.begin() + 2);  // without a v_proj the keys lie there twice
  EXPECT_THAT(verdict("compressed-tensors", modules, "vLLM").note, HasSubstr("qkv_proj (288 x 1024)"));
}

TEST(LoaderConstraints, VllmRefusesWithTheFirstLinearAndTheFigure) {
  EXPECT_EQ(verdict("gptq", block(scheme_of(4, 16, true, DType::kF16), 1024), "vLLM").reason,
            "model.layers.0.self_attn.q_proj has group size 16, and vLLM's GPTQ wants one of -1, 32, 64, "
            "128");
  EXPECT_THAT(verdict("compressed-tensors", block(scheme_of(3, 48, true), 576), "vLLM").reason,
              HasSubstr("group size 48, and Humming wants 16, 32 or a multiple of 64"));
  std::vector<PlannedModule> narrow = block(scheme_of(3, 64, false), 1024);
  narrow[1].out_features = 72;
  EXPECT_THAT(verdict("compressed-tensors", narrow, "vLLM").reason,
              HasSubstr("72 output features, whose zeros of 3 bits do not fill words of 32"));
  EXPECT_THAT(verdict("awq", block(scheme_of(4, 256, false, DType::kF16), 768), "vLLM").command,
              "vllm serve out/x --dtype float16");
  EXPECT_THAT(verdict("awq", block(scheme_of(4, 16, false, DType::kF16), 768), "vLLM").reason,
              HasSubstr("group size 16, and vLLM's AWQ kernel wants a multiple of 32"));
}

// Of attention over latents the two that read a block's input are one there, where queries have a latent.
TEST(LoaderConstraints, LatentsOfQueriesAndKeysShareAScheme) {
  const auto modules = [](std::vector<const char*> names) {
    std::vector<PlannedModule> all;
    for (const char* name : names)
      all.push_back({fmt::format("model.layers.0.self_attn.{}", name), scheme_of(4, 128, true), 1024, 1024});
    return all;
  };
  const auto found = [](const std::vector<PlannedModule>& all) {
    return verdict("compressed-tensors", all, "vLLM");
  };
  std::vector<PlannedModule> both = modules({"q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "o_proj"});
  EXPECT_TRUE(found(both).fits) << found(both).reason;
  both[1].scheme.bits = 8;
  EXPECT_THAT(found(both).reason,
              HasSubstr("q_a_proj and model.layers.0.self_attn.kv_a_proj_with_mqa become one"));
  const std::vector<std::string> keys = {"model.layers.0.self_attn.kv_a_proj_with_mqa"};
  EXPECT_THAT(
      verdict("compressed-tensors", modules({"q_a_proj", "o_proj"}), "vLLM", {keys}).reason,
      HasSubstr(
          "part of model.layers.0.self_attn.fused_qkv_a_proj there, and model.layers.0.self_attn.kv_a"));
  EXPECT_TRUE(verdict("compressed-tensors", modules({"q_proj", "o_proj"}), "vLLM", {keys}).fits)
      << "without a latent of queries they stay two";
  const std::vector<PlannedModule> plain = modules({"q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"});
  EXPECT_TRUE(found(plain).fits) << found(plain).reason;
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
  EXPECT_THAT(verdict("compressed-tensors", mixed, "Marlin").note, HasSubstr("down_proj (576 x 576)"));
}

TEST(LoaderConstraints, Mxfp8IsVllmsWhereInputsAreRounded) {
  QuantScheme scheme = scheme_of(8, kMxGroup, true);
  scheme.weight_type = WeightType::kFloat8;
  EXPECT_EQ(loader_verdicts("compressed-tensors", block(scheme, 576), "x").size(), 1u)
      << "Transformers alone";
  scheme.activation_bits = 8;
  scheme.activation_scale = ActivationScale::kTokenGroup;
  EXPECT_TRUE(verdict("compressed-tensors", block(scheme, 576), "MXFP8").fits);
  std::vector<PlannedModule> modules = block(scheme, 576);
  modules[1].scheme.activation_scale = ActivationScale::kNone;
  EXPECT_THAT(verdict("compressed-tensors", modules, "MXFP8").reason, HasSubstr("different schemes"));
}

// NVFP4 is decoded from Turing on, MXFP4 from Ampere on, and ModelOpt's FP8 is refused below Ada; q, k and v
// share their form.
TEST(LoaderConstraints, FloatsOfFourBitsAreMarlins) {
  const auto of = [](const char* scheme) { return block(scheme_named(scheme), 1024); };
  for (const char* scheme : {"nvfp4", "nvfp4a16"})
    for (const char* format : {"compressed-tensors", "modelopt"})
      EXPECT_EQ(verdict(format, of(scheme), "vLLM").loader, "vLLM 0.33 (FP4 Marlin kernels)");
  EXPECT_EQ(verdict("compressed-tensors", of("mxfp4"), "vLLM").loader,
            "vLLM 0.33 (MXFP4 Marlin kernels, from Ampere on)");
  EXPECT_TRUE(verdict("compressed-tensors", of("mxfp4"), "Transformers").fits);
  EXPECT_TRUE(verdict("mxfp4", of("mxfp4"), "vLLM").fits) << "gpt-oss's experts as they were published";
  EXPECT_TRUE(loader_verdicts("modelopt", of("mxfp4"), "x").empty()) << "which has no word for it";
  EXPECT_EQ(verdict("modelopt", of("fp8_static"), "vLLM").loader, "vLLM 0.33 (FP8 kernels, from Ada on)");
  for (const char* format : {"compressed-tensors", "modelopt"}) {
    std::vector<PlannedModule> modules = of("nvfp4a16");
    modules.back().scheme = scheme_named("fp8_static");
    EXPECT_TRUE(verdict(format, modules, "FP4 Marlin").fits);
    EXPECT_TRUE(verdict(format, modules, "FP8").fits);
    modules[1].scheme = scheme_named("fp8_static");
    EXPECT_THAT(
        verdict(format, modules, "FP4 Marlin").reason,
        HasSubstr("q_proj and model.layers.0.self_attn.k_proj become one linear there and have different"));
    modules = of("nvfp4");
    modules[2].scheme = scheme_named("nvfp4a16");
    EXPECT_THAT(verdict(format, modules, "vLLM").reason, HasSubstr("different schemes"));
  }
}

// v stands last in the fused linear, so its last block may be a part of one.
TEST(LoaderConstraints, Float8BlocksDoNotReachOverTheEndOfAFusedPart) {
  QuantScheme scheme = scheme_of(8, 0, true);
  scheme.granularity = Granularity::kBlock;
  scheme.weight_type = WeightType::kFloat8;
  scheme.activation_bits = 8;
  scheme.activation_scale = ActivationScale::kTokenGroup;
  std::vector<PlannedModule> modules = block(scheme, 1024);
  modules[2].out_features = 192;
  EXPECT_TRUE(verdict("compressed-tensors", modules, "FP8").fits);
  modules[1].out_features = 192;
  EXPECT_THAT(verdict("compressed-tensors", modules, "FP8").reason,
              HasSubstr("k_proj has 192 output features, and inside model.layers.0.self_attn.qkv_proj"));
  EXPECT_TRUE(verdict("compressed-tensors", modules, "Transformers").fits);
}

TEST(LoaderConstraints, FusedLinearsMustAgree) {
  std::vector<PlannedModule> modules = block(scheme_of(4, 128, true), 1024);
  modules[2].scheme = scheme_of(8, 128, true);
  EXPECT_THAT(verdict("compressed-tensors", modules, "vLLM").reason, HasSubstr("different schemes"));
  EXPECT_TRUE(verdict("compressed-tensors", modules, "Transformers").fits);
  modules = block(scheme_of(4, 128, true), 1024);
  modules.back().scheme = scheme_of(8, 128, true);  // down_proj stands alone
  EXPECT_TRUE(verdict("compressed-tensors", modules, "vLLM").fits);
  modules.erase(modules.begin() + 4);
  const std::vector<std::string> dense = {"model.layers.0.mlp.gate_proj", "lm_head"};
  EXPECT_EQ(verdict("compressed-tensors", modules, "vLLM", {dense}).reason,
            "model.layers.0.mlp.up_proj becomes part of model.layers.0.mlp.gate_up_proj there, and "
            "model.layers.0.mlp.gate_proj is not quantized");
}

TEST(LoaderConstraints, VllmRunsTheExpertsOfALayerAsOne) {
  std::vector<PlannedModule> modules;
  for (const int expert : {0, 1})
    for (const char* part : {"gate_proj", "up_proj", "down_proj"})
      modules.push_back({fmt::format("model.layers.3.mlp.experts.{}.{}", expert, part),
                         scheme_of(4, 128, true), 1024, 1024});
  EXPECT_TRUE(verdict("compressed-tensors", modules, "vLLM").fits);
  for (const std::size_t down : {2, 5}) modules[down].scheme = scheme_of(8, 128, true);
  EXPECT_THAT(verdict("compressed-tensors", modules, "vLLM").reason, HasSubstr("experts that run as one"));
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

TEST(LoaderConstraints, VllmTakesGptqOfFourOrEightBitsSymmetricAndWithoutAnOrder) {
  const auto reason = [](int bits, int group, bool symmetric, bool reordered) {
    std::vector<PlannedModule> modules = block(scheme_of(bits, group, symmetric, DType::kF16), 1024);
    for (PlannedModule& m : modules) m.column_groups = reordered;
    const LoaderVerdict found = verdict("gptq_v2", modules, "vLLM");
    return found.fits ? "fits" : found.reason;
  };
  EXPECT_EQ(reason(4, 128, true, false), "fits");
  EXPECT_EQ(reason(8, 0, true, true), "fits");  // one group a channel: an order that says nothing
  EXPECT_THAT(reason(4, 128, true, true), HasSubstr("carry their own group, which vLLM 0.33 does not read"));
  EXPECT_THAT(reason(4, 128, false, false),
              HasSubstr("4-bit asymmetric codes, and vLLM's GPTQ wants symmetric"));
  EXPECT_THAT(reason(3, 128, true, false),
              HasSubstr("3-bit symmetric codes, and vLLM's GPTQ wants 4, 8 bits"));
  std::vector<PlannedModule> ordered = block(scheme_of(4, 128, true), 1024);
  ordered[0].column_groups = true;
  EXPECT_THAT(verdict("compressed-tensors", ordered, "vLLM").reason,
              HasSubstr("carry their own group, which vLLM 0.33 and compressed-tensors 0.19 and later"));
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

}  // namespace
}  // namespace llmq::testing

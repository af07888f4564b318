// Plans for a real model: schemes resolved, and every error of intent said before a weight is read.
#include "quant/plan/plan.h"
#include "model/open_checkpoint.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "captured_output.h"
#include "export/convert.h"
#include "quant/methods/awq/scale_search.h"
#include "quant/plan/plan_costs.h"
#include "tests/support/temporary_directory.h"

namespace llmq {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Plan plan_for(const std::string& recipe, std::uint64_t limit = 0) {
  const Checkpoint checkpoint = stories();
  return make_plan(Recipe::parse(recipe, "r.yaml"), checkpoint, ModelSpec::read(checkpoint),
                   Compute::kBFloat16, 1, limit);
}

std::uint64_t peak_of(const Plan& plan) { return costs_of(plan).peak_bytes; }

std::string plan_error(const std::string& recipe, std::uint64_t limit = 0) {
  try {
    plan_for(recipe, limit);
    return "";
  } catch (const Error& e) {
    EXPECT_EQ(exit_code(e.kind()), 2);
    return e.what();
  }
}

TEST(Plan, WithoutASchemeTakesTheLargestGroupThatDividesEverything) {
  const Plan plan = plan_for("method: awq\n");  // 128 and 384 columns
  ASSERT_EQ(plan.modules.size(), 14u);
  for (const PlannedModule& m : plan.modules) EXPECT_EQ(m.scheme.text(), "w4a16_g128_asym");
  EXPECT_EQ(plan.modules[0].module, "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(plan.modules[0].scheme.scale_dtype, DType::kBF16);
  EXPECT_TRUE(plan.needs_calibration);
  EXPECT_FALSE(plan_for("method: rtn\n").needs_calibration);
  EXPECT_EQ(plan_for("method: awq\nscheme: w8a16\n").modules[3].scheme.text(), "w8a16_g128_asym");
  EXPECT_EQ(plan_for("method: awq\nscheme: w4a16_g32_sym\n").modules[3].scheme.text(), "w4a16_g32_sym");
  EXPECT_EQ(plan_for("method: awq\nformat: awq\n").modules[3].scheme.scale_dtype, DType::kF16);
}

// What attention over latents absorbs has weights of few bits, and no inputs that could be rounded.
TEST(Plan, WhatIsAbsorbedIsLeftOutWhereInputsAreRounded) {
  const Checkpoint latents =
      open_checkpoint(system_io(), std::string(LLMQ_SOURCE_DIR) + "/tests/golden/models/deepseek_v3/model");
  const auto planned = [&](const std::string& scheme) {
    return make_plan(Recipe::parse("method: rtn\nignore: [lm_head]\nscheme: " + scheme + "\n", "r.yaml"),
                     latents, ModelSpec::read(latents), Compute::kBFloat16, 1, 0);
  };
  const std::string absorbed = "model.layers.1.self_attn.kv_b_proj";
  const auto has = [&](const Plan& plan) {
    return std::any_of(plan.modules.begin(), plan.modules.end(),
                       [&](const PlannedModule& m) { return m.module == absorbed; });
  };
  const Plan rounded = planned("w8a8");
  EXPECT_FALSE(has(rounded));
  EXPECT_THAT(rounded.ignored, ::testing::Contains(absorbed));
  EXPECT_THAT(rounded.warnings,
              ElementsAre(HasSubstr("model.layers.0.self_attn.kv_b_proj and those like it stay dense")));
  const Plan weights = planned("w4a16_g8_sym");
  EXPECT_TRUE(has(weights));
  EXPECT_TRUE(weights.warnings.empty());
  for (const char* candidates : {"w4a16_g8_sym, fp8", "fp8, w4a16_g8_sym"}) {
    const Plan budget = make_plan(Recipe::parse("method: rtn\nignore: [lm_head]\ntarget_bits: "
                                                "7\ncalibration: {samples: 4, sequence_length: 32}\nmixed: "
                                                "{schemes: [" +
                                                    std::string(candidates) + "]}\n",
                                                "r.yaml"),
                                  latents, ModelSpec::read(latents), Compute::kBFloat16, 1, 0);
    EXPECT_FALSE(has(budget)) << candidates;
    EXPECT_EQ(budget.candidates.front().scheme, "w4a16_g8_sym");
  }
}

// An engine has one form of codes for all of a layer's experts.
TEST(Plan, ExpertsOfALayerHaveOneScheme) {
  const Checkpoint experts =
      open_checkpoint(system_io(), std::string(LLMQ_SOURCE_DIR) + "/tests/golden/models/deepseek_v3/model");
  const auto refused = [&](const std::string& match) -> std::string {
    try {
      make_plan(
          Recipe::parse("method: rtn\nscheme: w4a16_g8_sym\nignore: [lm_head]\noverrides: [{match: 're:.*" +
                            match + "', scheme: fp8}]\n",
                        "r.yaml"),
          experts, ModelSpec::read(experts), Compute::kBFloat16, 1, 0);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_THAT(refused("experts.*down_proj"),
              HasSubstr("r.yaml: overrides: engines run the experts of model.layers.1"));
  EXPECT_THAT(refused("experts.*down_proj"),
              HasSubstr("experts.0.gate_proj w4a16_g8_sym, experts.0.down_proj fp8"));
  EXPECT_EQ(refused("mlp.experts"), "");
}

TEST(Plan, ScalesOfAKvCacheAreCalibratedWhateverRounds) {
  for (const char* method : {"rtn", "awq"}) {
    const Plan plan = plan_for(std::string("method: ") + method + "\nkv_cache: {dtype: fp8}\n");
    EXPECT_TRUE(plan.needs_calibration) << method;
    EXPECT_EQ(plan.kv_cache, KvCacheType::kFloat8) << method;
  }
}

TEST(Plan, IgnoreAndOverridesChooseLinears) {
  const Plan plan = plan_for(
      "method: awq\nscheme: w4a16_g64_asym\nignore: [lm_head, 're:.*layers\\.0\\..*k_proj']\n"
      "overrides: [{match: 're:.*down_proj', scheme: w8a16_g128_sym}, {match: model.layers.1.mlp.down_proj, "
      "scheme: w8a16_channel_sym}]\n");
  EXPECT_EQ(plan.modules.size(), 13u);
  EXPECT_THAT(plan.ignored, ElementsAre("model.layers.0.self_attn.k_proj"));
  EXPECT_TRUE(plan.warnings.empty());
  EXPECT_EQ(plan.modules[5].scheme.text(), "w8a16_g128_sym");
  EXPECT_EQ(plan.modules.back().scheme.text(), "w8a16_channel_sym");  // the last match wins
  const Plan loose = plan_for(
      "method: awq\nignore: [lm_head, nothing]\noverrides: [{match: 're:.*x_proj', scheme: w8a16}]\n");
  EXPECT_THAT(loose.warnings, ElementsAre(HasSubstr("ignore: 'nothing' matches no linear"),
                                          HasSubstr("overrides: 're:.*x_proj'")));
}

// Integers and floats side by side: what the method does not choose is rounded to nearest, and said.
TEST(Plan, OverridesMixSchemesOfEveryForm) {
  const std::string mixed =
      "scheme: w4a16_g64_asym\noverrides: [{match: 're:.*layers.0.*self_attn', scheme: nvfp4a16}, "
      "{match: 're:.*layers.1.mlp.(gate|up)', scheme: mxfp8a16}, {match: 're:.*down_proj', scheme: fp8}, "
      "{match: 're:.*layers.1.mlp.down_proj', scheme: dense}]\n";
  const Plan plan = plan_for("method: [awq, gptq]\n" + mixed);
  std::vector<std::string> schemes;
  for (const PlannedModule& m : plan.modules) schemes.push_back(m.scheme.text());
  EXPECT_THAT(schemes, ElementsAre("nvfp4a16", "nvfp4a16", "nvfp4a16", "nvfp4a16", "w4a16_g64_asym",
                                   "w4a16_g64_asym", "fp8", "w4a16_g64_asym", "w4a16_g64_asym",
                                   "w4a16_g64_asym", "w4a16_g64_asym", "mxfp8a16", "mxfp8a16"));
  EXPECT_THAT(plan.ignored, ElementsAre("model.layers.1.mlp.down_proj"));
  EXPECT_THAT(plan.warnings,
              ElementsAre(HasSubstr("model.layers.0.mlp.down_proj and those like it are fp8, which awq+gptq "
                                    "leaves to rounding to nearest")));
  EXPECT_TRUE(plan_for("method: rtn\n" + mixed).warnings.empty());
  EXPECT_THAT(plan_error("method: smoothquant\n" + mixed), HasSubstr("does not round floats in groups"));
}

// An engine has one kernel and one global scale for them.
TEST(Plan, WhatEnginesFuseHasOneScheme) {
  const auto refused = [](const std::string& match, const std::string& scheme) {
    return plan_error("method: rtn\nscheme: w4a16_g64_asym\noverrides: [{match: 're:.*" + match +
                      "', scheme: " + scheme + "}]\n");
  };
  EXPECT_THAT(refused("layers.1.*[qk]_proj", "nvfp4a16"),
              HasSubstr("r.yaml: overrides: engines run model.layers.1.self_attn.qkv_proj as one linear, and "
                        "its parts were given different schemes: q_proj nvfp4a16, k_proj nvfp4a16, v_proj "
                        "w4a16_g64_asym; give q_proj, k_proj and v_proj one scheme"));
  EXPECT_THAT(refused("up_proj", "mxfp4"), HasSubstr("model.layers.0.mlp.gate_up_proj"));
  EXPECT_EQ(refused("up_proj", "w4a16_g32_asym"), "") << "integers load in Transformers and GPTQModel";
  EXPECT_THAT(refused("up_proj", "dense"), HasSubstr("gate_proj w4a16_g64_asym, up_proj dense"));
  EXPECT_EQ(refused("(gate|up)_proj", "dense"), "");
  EXPECT_EQ(refused("self_attn.[qkv]_proj", "nvfp4a16"), "");
  EXPECT_EQ(refused("o_proj", "fp8"), "");
  EXPECT_EQ(plan_error("method: rtn\nformat: safetensors\noverrides: [{match: 're:.*q_proj', scheme: "
                       "nvfp4a16}]\n"),
            "")
      << "weights that stay dense have no scheme in an engine";
}

TEST(Plan, AHeadOfItsOwnThatIsNotIgnoredIsSaidToStay) {
  const Checkpoint checkpoint = stories();
  ModelSpec spec = ModelSpec::read(checkpoint);
  spec.tied_head = false;
  const auto warnings = [&](const std::string& recipe) {
    return make_plan(Recipe::parse(recipe, "r.yaml"), checkpoint, spec, Compute::kBFloat16, 1, 0).warnings;
  };
  EXPECT_TRUE(warnings("method: rtn\n").empty());
  EXPECT_THAT(warnings("method: rtn\nignore: []\n"), ElementsAre(HasSubstr("lm_head stays as it is")));
}

TEST(Plan, TargetsOfAnLlmCompressorRecipeLimitWhatIsQuantized) {
  const Plan plan = plan_for(
      "AWQModifier: {}\nQuantizationModifier: {scheme: W4A16_ASYM, targets: ['re:.*mlp.*'], ignore: "
      "[lm_head]}\n");
  EXPECT_EQ(plan.modules.size(), 6u);
  EXPECT_EQ(plan.ignored.size(), 8u);
  EXPECT_EQ(plan.modules[0].scheme.text(), "w4a16_g128_asym");
}

// A group per column is what vLLM refuses in every format, and what GPTQModel reads in one.
TEST(Plan, SaysWhoDoesNotReadAGroupPerColumn) {
  const auto warnings = [](const std::string& format, const std::string& order) {
    return plan_for("method: gptq\nscheme: w4a16_g64_sym\nformat: " + format + "\ngptq: {order: " + order +
                    "}\n")
        .warnings;
  };
  EXPECT_THAT(warnings("compressed-tensors", "act"), ElementsAre(HasSubstr("vLLM 0.33 do not read")));
  EXPECT_THAT(warnings("gptq", "act"), ElementsAre(HasSubstr("GPTQModel reads and vLLM 0.33 does not")));
  EXPECT_THAT(warnings("gptq_v2", "act"), ElementsAre(HasSubstr("GPTQModel reads and vLLM 0.33 does not")));
  for (const char* format : {"compressed-tensors", "gptq", "gptq_v2"})
    EXPECT_TRUE(warnings(format, "gar").empty());
}

TEST(Plan, EightBitInputs) {
  const auto first = [](const std::string& scheme) {
    return plan_for("method: rtn\nscheme: " + scheme + "\n").modules[0].scheme;
  };
  EXPECT_EQ(first("w8a8").text(), "w8a8_channel_sym");
  EXPECT_EQ(first("w8a8").activation_scale, ActivationScale::kToken);
  EXPECT_EQ(first("w4a8").text(), "w4a8_g128_sym");
  EXPECT_EQ(first("w4a8_g32_asym").text(), "w4a8_g32_asym");
  EXPECT_EQ(first("fp8").activation_scale, ActivationScale::kToken);
  EXPECT_EQ(first("fp8_static").activation_scale, ActivationScale::kTensor);
  EXPECT_EQ(first("fp8_block").activation_scale, ActivationScale::kTokenGroup);
  for (const char* text : {"nvfp4", "mxfp4a4", "mxfp8"}) {
    EXPECT_EQ(first(text).text(), text);
    EXPECT_EQ(first(text).activation_scale, ActivationScale::kTokenGroup);
    const Plan plan = plan_for(std::string("method: rtn\nscheme: ") + text + "\n");
    EXPECT_EQ(plan.needs_calibration, std::string(text) == "nvfp4") << "for its global scale";
  }
  EXPECT_FALSE(plan_for("method: rtn\nscheme: w8a8\n").needs_calibration);
  EXPECT_TRUE(plan_for("method: rtn\nscheme: w8a8_channel_sym_static\n").needs_calibration);
}

// Loaders run in the type of the scales; a checkpoint in F16 gives its own.
TEST(Plan, ScalesHaveTheTypeOfTheCheckpoint) {
  const testing::TemporaryDirectory disk;
  ConvertRequest request;
  request.source = stories().path().string();
  request.target.directory = disk / "f16";
  request.dtype = "f16";
  convert(system_io(), open_checkpoint(system_io(), request.source), request);
  const Checkpoint checkpoint = open_checkpoint(system_io(), request.target.directory.string());
  const auto scales = [&](const std::string& recipe, const Checkpoint& model) {
    return make_plan(Recipe::parse(recipe, "r.yaml"), model, ModelSpec::read(model), Compute::kBFloat16, 1, 0)
        .modules.front()
        .scheme.scale_dtype;
  };
  for (const char* format : {"compressed-tensors", "safetensors"}) {
    const std::string recipe = std::string("method: rtn\nformat: ") + format + "\n";
    EXPECT_EQ(scales(recipe, checkpoint), DType::kF16);
    EXPECT_EQ(scales(recipe, stories()), DType::kBF16);
  }
}

TEST(Plan, SalientColumnsAreABaselineForDenseOutputs) {
  const std::string salient = "method: awq\nawq: {salient_fp16: 0.01}\n";
  const Plan plan = plan_for(salient + "format: safetensors\nscheme: w3a16_g128_sym\n");
  EXPECT_EQ(plan.method, "awq.salient_fp16");
  EXPECT_FALSE(plan.traits->folds);
  EXPECT_TRUE(plan.traits->keeps_columns);
  EXPECT_TRUE(plan.needs_calibration);
  EXPECT_EQ(plan.modules[0].scheme.scale_dtype, DType::kBF16);
  EXPECT_EQ(plan.bits_per_weight(), 32);
  EXPECT_EQ(plan_for("method: awq\nawq: {salient_fp16: 0}\n").method, "awq");
  for (const char* format : {"compressed-tensors", "awq", "gptq", "gptq_v2"})
    EXPECT_THAT(plan_error(salient + "format: " + format + "\n"),
                HasSubstr(std::string("format ") + format +
                          " has no place for columns that stay at 16 bits; write format: safetensors"));
  for (const char* method : {"rtn", "gptq", "[awq, gptq]", "[awq, rtn]"})
    EXPECT_THAT(
        plan_error("format: safetensors\nawq: {salient_fp16: 0.01}\nmethod: " + std::string(method) + "\n"),
        HasSubstr("write method: awq"));
}

TEST(Plan, ADenseOutputHoldsWeightsAlone) {
  EXPECT_EQ(plan_for("method: [awq, gptq]\nformat: safetensors\n").modules.size(), 14u);
  EXPECT_THAT(plan_error("method: rtn\nscheme: w8a8\nformat: safetensors\n"),
              HasSubstr("format safetensors cannot say that inputs are rounded"));
  EXPECT_THAT(plan_error("method: rtn\ntarget_bits: 5\nformat: safetensors\n"),
              HasSubstr("a budget of bits means nothing where format safetensors"));
  EXPECT_THAT(plan_error("method: awq\nkv_cache: {dtype: fp8}\nformat: safetensors\n"),
              HasSubstr("no place for the scales of a KV cache"));
}

TEST(Plan, SaysWhatItCannotDo) {
  EXPECT_EQ(plan_error("method: [awq, gptq]\n"), "");
  EXPECT_THAT(plan_error("method: [smoothquant, awq]\n"),
              HasSubstr("[smoothquant, awq] is no method; there are rtn,"));
  EXPECT_THAT(plan_error("method: imatrix\n"),
              HasSubstr("imatrix is no method without format: gguf; there are rtn,"));
  EXPECT_THAT(plan_error("version: 1\n"), HasSubstr("no method is named"));
  EXPECT_THAT(plan_error("method: awq\nformat: gguf\n"),
              HasSubstr("format 'gguf' is not written by this version"));
  EXPECT_THAT(plan_error("method: awq\nscheme: fp8\n"), HasSubstr("and method awq chooses integer codes"));
  EXPECT_THAT(plan_error("method: rtn\nscheme: w8a8\nformat: awq\n"),
              HasSubstr("format: compressed-tensors can express every module"));
  EXPECT_THAT(plan_error("method: rtn\noutput: {dir: x, keep: 3}\n"), HasSubstr("add versioned: true"));
  EXPECT_THAT(plan_error("method: awq\nscheme: w4a16_g96_asym\n"),
              HasSubstr("group_size 96 does not divide the 128 input features of "
                        "model.layers.0.self_attn.q_proj; groups of 128, 64, 32, 16, 8 divide every linear"));
  EXPECT_THAT(plan_error("method: awq\nignore: ['re:.*']\n"), HasSubstr("nothing is left to quantize"));
  EXPECT_THAT(plan_error("method: awq\nignore: ['re:(']\n"), HasSubstr("re:("));
  EXPECT_THAT(plan_error("method: awq\ncalibration: {sequence_length: 513}\n"),
              HasSubstr("exceed the model's 512 positions"));
}

TEST(Plan, ARankCountsWhatJoiningTook) {
  for (const char* recipe : {"method: rtn\n", "method: awq\n"}) {
    Plan plan = plan_for(recipe);
    const std::uint64_t alone = peak_of(plan), joining = std::uint64_t{100} << 20;
    plan.joining_bytes = joining;
    EXPECT_GE(peak_of(plan), alone + joining) << recipe;
    EXPECT_LE(peak_of(plan), alone + joining + joining / 20) << "but for what lies between the heap's blocks";
  }
}

TEST(Plan, AMemoryLimitIsKeptOrRefusedWithTheSmallestFigure) {
  // a twentieth in reserve
  const auto needed = [](const Plan& of) { return peak_of(of) + peak_of(of) / 20; };
  const Plan plan = plan_for("method: awq\n");
  const PlanCosts costs = costs_of(plan);
  EXPECT_EQ(total_bytes(costs.memory), costs.peak_bytes);
  EXPECT_TRUE(plan.keep_inputs);
  EXPECT_TRUE(plan_for("method: awq\n", needed(plan)).keep_inputs);
  // 128 x 512 samples: 16 chunks' worth of inputs are given up before the run is refused.
  const Plan least = plan_for("method: awq\n", needed(plan) - 1);
  EXPECT_FALSE(least.keep_inputs);
  constexpr std::uint64_t kInputs = (128u * 512 - 4096) * 384 * 2;
  EXPECT_NEAR(static_cast<double>(peak_of(plan) - peak_of(least)), kInputs + kInputs / 25, 1)
      << "with the gaps that the heap is planned to have between its blocks";
  EXPECT_FALSE(least.activations_in_file);
  // Then the residual stream of all but one chunk.
  const Plan filed = plan_for("method: awq\n", needed(least) - 1);
  EXPECT_FALSE(filed.keep_inputs);
  EXPECT_TRUE(filed.activations_in_file);
  constexpr std::uint64_t kResidual = (128u * 512 - 4096) * 128 * 4;
  EXPECT_NEAR(static_cast<double>(peak_of(least) - peak_of(filed)), kResidual + kResidual / 25, 1);
  EXPECT_EQ(plan_error("method: awq\n", needed(filed)), "");
  EXPECT_THAT(
      plan_error("method: awq\n", needed(filed) - 1),
      HasSubstr("--memory-limit " + std::to_string((needed(filed) + 999'999) / 1'000'000) + "MB would do"));
}

TEST(Plan, CodesOfE4m3AreNoIntegersOfOtherFormats) {
  for (const std::string format : {"gptq", "gptq_v2", "awq", "mlx", "mxfp4"})
    EXPECT_THAT(plan_error("method: rtn\nscheme: mxfp8a16\nformat: " + format + "\n"),
                HasSubstr("format " + format))
        << format;
  EXPECT_THAT(plan_error("method: rtn\nscheme: mxfp8a16\nformat: gptq\n"),
              HasSubstr("format gptq has no place for codes of scheme mxfp8a16"));
  EXPECT_EQ(plan_error("method: rtn\nscheme: mxfp8a16\n"), "");
}

TEST(Plan, ChunksDependOnTheRecipeAlone) {
  EXPECT_EQ(plan_for("method: awq\n").chunk_tokens, 4096);
  EXPECT_EQ(plan_for("method: awq\ncalibration: {sequence_length: 300}\n").chunk_tokens, 3900);
}

// A search asks for losses of rows; error feedback takes a factor of each input and one product more of each
// row. The small model has two blocks of seven linears with four inputs.
TEST(Plan, OperationsAreThoseOfItsMethod) {
  const auto flops = [](const char* recipe) { return costs_of(plan_for(recipe)).flops; };
  const Plan plan = plan_for("method: gptq\n");
  double feedback = 0, searches = 0;
  const auto rows = [&](int linear) {
    return plan.modules.at(static_cast<std::size_t>(linear)).out_features;
  };
  for (const PlannedModule& module : plan.modules)
    feedback += 2.0 * static_cast<double>(module.out_features * module.in_features * module.in_features);
  const std::vector<std::vector<std::int64_t>> readers = {
      {rows(0), rows(1), rows(2)}, {rows(3)}, {rows(4), rows(5)}, {rows(6)}};
  for (std::size_t input = 0; input < readers.size(); ++input) {
    const double channels = input == 3 ? 384 : 128;
    feedback += 2 * channels * channels * channels;
    searches += 2 * 2 * channels * channels * static_cast<double>(scale_search_losses(readers[input], {}));
  }
  const double neither = flops("method: smoothquant\n");
  EXPECT_NEAR(flops("method: gptq\n") / (neither + feedback), 1, 1e-12);
  EXPECT_NEAR(flops("method: awq\n") / (neither + searches), 1, 1e-12);
  EXPECT_EQ(flops("method: rtn\n"), 0);
}

}  // namespace
}  // namespace llmq

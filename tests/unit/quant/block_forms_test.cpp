// Forms of blocks that are not Llama's. What no family has yet is held against the same model in a form that
// families have: matrices that are stacked and transposed, a factor of what enters the residual stream, a
// reader that is never quantized. Of norms behind the mixers: which scales move and which do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "captured_output.h"
#include "support/named_parts.h"
#include "tests/unit/model/scratch_gemma4.h"
#include "tests/unit/model/scratch_mixture.h"
#include "tests/unit/model/scratch_model.h"

namespace llmq {
namespace {

constexpr const char* kGptqInForms =
    "method: gptq\nscheme: w4a16_g8_sym\ngptq: {upstream_share: 0.5}\ncalibration: {sequence_length: 24}\n";
constexpr const char* kAwqInForms =
    "method: awq\nscheme: w4a16_g8_asym\nawq: {grid: 5, clip: false}\ncalibration: {sequence_length: 24}\n";

ScratchTensor noise(std::vector<std::int64_t> shape, std::uint32_t state, float scale = 0.25f) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(scale *
                     (static_cast<float>((state = state * 1664525u + 1013904223u) >> 16) / 32768.0f - 1.0f));
  return scratch_tensor("F32", std::move(shape), values);
}

// Weights that no two places share, and gains around 1, some of them large: scales are worth finding.
void make_noisy(ScratchModel& model) {
  std::uint32_t seed = 1;
  for (auto& [name, tensor] : model.tensors) {
    const bool norm = name.find("norm") != std::string::npos;
    tensor = noise(tensor.shape, seed++);
    if (!norm) continue;
    auto* const gains = reinterpret_cast<float*>(tensor.bytes.data());
    for (std::int64_t c = 0; c < tensor.shape[0]; ++c) gains[c] = (c % 5 == 0 ? 6.0f : 1.0f) + gains[c];
  }
}

struct Job {
  CapturedOutput output;
  QuantizeReport report;
  Job(const char* recipe, const Checkpoint& checkpoint, const ModelSpec& spec) {
    CalibrationSet samples = some_samples(4, 24);
    for (std::vector<std::int32_t>& ids : samples.samples)
      for (std::int32_t& id : ids) id %= static_cast<std::int32_t>(spec.vocab_size);
    const Plan plan = make_plan(Recipe::parse(recipe, "r.yaml"), checkpoint, spec, Compute::kFloat32, 1, 0);
    report = run_pipeline(plan, checkpoint, spec, samples, *make_cpu_backend(2), output, {});
  }
  std::vector<float> dense(const std::string& name) const {
    const CapturedOutput::Dense& stored = output.dense.at(name);
    std::vector<float> values(static_cast<std::size_t>(stored.shape.elements()));
    to_float32(TensorView(stored.bytes.data(), stored.dtype, stored.shape), values);
    return values;
  }
};

// The down projections of all blocks as one tensor [blocks, in, out]; the up projections as
// [blocks, out, in].
std::optional<SlabNames> slabs(const Json&, const std::string& tensor) {
  if (tensor == "model.stacked_down") return SlabNames{"model.layers.", ".mlp.down_proj.weight", true};
  if (tensor == "model.stacked_up") return SlabNames{"model.layers.", ".mlp.up_proj.weight", false};
  // Of matrices of 16 columns, which the last extent of this one is not.
  if (tensor == "model.stacked_both")
    return SlabNames{.before = "model.layers.",
                     .after = ".mlp.gate_proj.weight",
                     .further = {".mlp.up_proj.weight"},
                     .columns = 16};
  return std::nullopt;
}

// The gate and the up projections of all blocks as one tensor [blocks, in, gate and up].
void stack_side_by_side(ScratchModel& model) {
  std::vector<float> both;
  for (const char* block : {"model.layers.0", "model.layers.1"}) {
    const auto gate = model.tensors.extract(block + std::string(".mlp.gate_proj.weight")),
               up = model.tensors.extract(block + std::string(".mlp.up_proj.weight"));
    for (int c = 0; c < 16; ++c)
      for (const auto* const taken : {&gate, &up})
        for (int r = 0; r < 24; ++r)
          both.push_back(reinterpret_cast<const float*>(taken->mapped().bytes.data())[r * 16 + c]);
  }
  model.tensors["model.stacked_both"] = scratch_tensor("F32", {2, 16, 48}, both);
}

void stack(ScratchModel& model) {
  std::vector<float> down, up;
  for (const char* block : {"model.layers.0", "model.layers.1"}) {
    auto taken = model.tensors.extract(block + std::string(".mlp.down_proj.weight"));
    const auto* const rows = reinterpret_cast<const float*>(taken.mapped().bytes.data());
    for (int c = 0; c < 24; ++c)
      for (int r = 0; r < 16; ++r) down.push_back(rows[r * 24 + c]);
    taken = model.tensors.extract(block + std::string(".mlp.up_proj.weight"));
    const auto* const values = reinterpret_cast<const float*>(taken.mapped().bytes.data());
    up.insert(up.end(), values, values + 24 * 16);
  }
  model.tensors["model.stacked_down"] = scratch_tensor("F32", {2, 24, 16}, down);
  model.tensors["model.stacked_up"] = scratch_tensor("F32", {2, 24, 16}, up);
}

void expect_same_tensors(void (*stack_them)(ScratchModel& model)) {
  ScratchModel apart, stacked;
  make_noisy(apart);
  stacked.tensors = apart.tensors;
  stack_them(stacked);
  const Checkpoint one = apart.open(), other = stacked.open(slabs);
  ASSERT_EQ(one.tensors().size(), other.tensors().size());
  for (std::size_t i = 0; i < one.tensors().size(); ++i) {
    EXPECT_EQ(one.tensors()[i].name, other.tensors()[i].name);
    EXPECT_EQ(one.tensors()[i].view.shape, other.tensors()[i].view.shape);
    EXPECT_EQ(one.read_float32(one.tensors()[i]), other.read_float32(other.tensors()[i]));
  }
  for (const char* recipe : {"method: rtn\nscheme: w4a16_g8_sym\n", kGptqInForms, kAwqInForms,
                             "method: rtn\nscheme: w4a16_g8_sym\nignore: ['re:.*(down|up)_proj']\n"}) {
    SCOPED_TRACE(recipe);
    const Job from_one(recipe, one, ModelSpec::read(one)), from_other(recipe, other, ModelSpec::read(other));
    EXPECT_EQ(from_one.output.dense, from_other.output.dense);
    ASSERT_EQ(from_one.output.quantized.size(), from_other.output.quantized.size());
    for (const auto& [module, matrix] : from_one.output.quantized) {
      EXPECT_EQ(matrix.codes, from_other.output.quantized.at(module).codes) << module;
      EXPECT_EQ(matrix.scales, from_other.output.quantized.at(module).scales) << module;
    }
  }
}

TEST(BlockForms, StackedMatricesAreTensorsOfTheirOwn) { expect_same_tensors(stack); }
TEST(BlockForms, MatricesStackedSideBySideAreTensorsOfTheirOwn) { expect_same_tensors(stack_side_by_side); }

TEST(BlockForms, WhatIsNoStackIsRefused) {
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{24, 16}, {0, 24, 16}, {1 << 17, 1, 1}}) {
    ScratchModel model;
    model.tensors["model.stacked_down"] = scratch_ramp(shape);
    const std::string error = error_of([&] { model.open(slabs); });
    EXPECT_NE(error.find("model.stacked_down"), std::string::npos) << error;
    EXPECT_NE(error.find("this family stacks matrices there"), std::string::npos) << error;
  }
}

void scale_outputs(ScratchModel& model, float by) {
  for (auto& [name, tensor] : model.tensors) {
    if (name.find("o_proj") == std::string::npos && name.find("down_proj") == std::string::npos) continue;
    auto* const values = reinterpret_cast<float*>(tensor.bytes.data());
    for (std::size_t i = 0; i < tensor.bytes.size() / 4; ++i) values[i] *= by;
  }
}

// A factor of 1/4 at the sublayer is the same model as output linears of a quarter: exactly, as it is a power
// of two. What upstream error adds to them is four times as much, so codes are equal and scales are too.
TEST(BlockForms, ResidualScaleIsThatOfTheOutputLinears) {
  ScratchModel plain, scaled;
  make_noisy(plain);
  scaled.tensors = plain.tensors;
  scale_outputs(plain, 0.25f);
  const Checkpoint of_plain = plain.open(), of_scaled = scaled.open();
  ModelSpec spec = ModelSpec::read(of_scaled);
  for (BlockSpec& block : spec.blocks)
    for (SublayerSpec& part : block.sublayers) part.residual_scale = 0.25f;
  const Job one(kGptqInForms, of_plain, ModelSpec::read(of_plain)), other(kGptqInForms, of_scaled, spec);
  for (const auto& [module, matrix] : one.output.quantized) {
    const QuantizedMatrix& found = other.output.quantized.at(module);
    EXPECT_EQ(matrix.codes, found.codes) << module;
    const bool output = module.ends_with("o_proj") || module.ends_with("down_proj");
    for (std::size_t i = 0; i < matrix.scales.size(); ++i)
      ASSERT_EQ(matrix.scales[i] * (output ? 4 : 1), found.scales[i]) << module;
  }
}

// gate_proj in the place of a router: it reads the input of the MLP and is never quantized.
ModelSpec with_router(const Checkpoint& checkpoint) {
  ModelSpec spec = ModelSpec::read(checkpoint);
  for (BlockSpec& block : spec.blocks)
    for (LinearSpec& linear : block.linears)
      if (linear.module.ends_with("gate_proj")) linear.quantizable = false;
  return spec;
}

struct Moved {
  double gain = 0, product = 0;  // largest |log| of new over old: of gains, and of gains times gate's columns
};

Moved moved(const Job& job, const Checkpoint& checkpoint, const BlockSpec& block,
            const char* norm = "post_attention_layernorm") {
  const NormSpec& of = block.at(norm_named(block, norm));
  const std::string gain = of.gain.tensor, gate = linear_named(block, "gate_proj").weight.tensor;
  std::vector<float> old_gain = checkpoint.read_float32(checkpoint.at(gain)), new_gain = job.dense(gain);
  for (std::vector<float>* const gains : {&old_gain, &new_gain})
    for (float& value : *gains) value = of.multiplier(value);
  const std::vector<float> old_gate = checkpoint.read_float32(checkpoint.at(gate)),
                           new_gate = job.dense(gate);
  Moved result;
  for (std::size_t i = 0; i < old_gate.size(); ++i) {
    const std::size_t c = i % old_gain.size();
    const double before = static_cast<double>(old_gain[c]) * old_gate[i],
                 after = static_cast<double>(new_gain[c]) * new_gate[i];
    result.gain = std::max(result.gain, std::fabs(std::log(static_cast<double>(new_gain[c]) / old_gain[c])));
    result.product = std::max(result.product, std::fabs(std::log(after / before)));
  }
  return result;
}

TEST(BlockForms, ReadersThatAreNeverQuantizedGetTheScaleToo) {
  ScratchModel model;
  make_noisy(model);
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = with_router(checkpoint);
  for (const char* recipe : {kAwqInForms,
                             "method: smoothquant\nscheme: w8a8_channel_sym\nsmoothquant: {alpha: 0.5}\n"
                             "calibration: {sequence_length: 24}\n"}) {
    SCOPED_TRACE(recipe);
    const Job job(recipe, checkpoint, spec);
    for (const BlockSpec& block : spec.blocks) {
      const LinearSpec& gate = linear_named(block, "gate_proj");
      EXPECT_EQ(job.output.quantized.count(gate.module), 0u);
      const Moved found = moved(job, checkpoint, block);
      EXPECT_GT(found.gain, 0.1) << "without a fold there is nothing to see";
      EXPECT_LT(found.product, 4 * 0x1p-24) << "one division and two products, of 24 bits";
    }
  }
}

// Readers of the residual stream as it is are rounded as they are, and the norms behind keep their gains;
// scales move from v to o and from up to down alone.
TEST(BlockForms, NothingMovesWithoutANormBefore) {
  ScratchOlmo2 model;
  make_noisy(model);
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  for (const auto& [folding, plain] :
       {std::pair{kAwqInForms, "method: rtn\nscheme: w4a16_g8_asym\n"},
        {"method: smoothquant\nscheme: w8a8_channel_sym\nsmoothquant: {alpha: 0.5}\n"
         "calibration: {sequence_length: 24}\n",
         "method: rtn\nscheme: w8a8_channel_sym\n"}}) {
    SCOPED_TRACE(folding);
    const Job job(folding, checkpoint, spec), rounded(plain, checkpoint, spec);
    ASSERT_EQ(job.report.warnings.size(), 1u);
    EXPECT_THAT(job.report.warnings.back(),
                ::testing::HasSubstr("moves no scale out of x_attn and x_mlp: nothing makes them"));
    for (const BlockSpec& block : spec.blocks) {
      for (const NormSpec& norm : block.norms)
        EXPECT_EQ(job.dense(norm.gain.tensor), checkpoint.read_float32(checkpoint.at(norm.gain.tensor)))
            << norm.gain.tensor;
      for (const char* kept : {"q_proj", "k_proj", "gate_proj"}) {
        const std::string& module = linear_named(block, kept).module;
        EXPECT_EQ(job.output.quantized.at(module).codes, rounded.output.quantized.at(module).codes) << module;
      }
      for (const char* scaled : {"v_proj", "o_proj", "up_proj", "down_proj"}) {
        const std::string& module = linear_named(block, scaled).module;
        EXPECT_NE(job.output.quantized.at(module).scales, rounded.output.quantized.at(module).scales)
            << module << ": without a fold there is nothing to see";
      }
    }
  }
}

// Scales leave three norms: those before attention, the MLP and the experts. The router, what it reads by and
// all that multiplies behind keep their bytes; o is rounded as it is, because no scale passes the norm of v.
TEST(BlockForms, ScalesOfGemma4LeaveTheRouterAlone) {
  ScratchGemma4 model;
  model.add_experts();
  make_noisy(model);
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const Job job(kAwqInForms, checkpoint, spec),
      rounded("method: rtn\nscheme: w4a16_g8_asym\n", checkpoint, spec);
  for (const BlockSpec& block : spec.blocks) {
    const auto stored = [&](const std::string& name) {
      return checkpoint.read_float32(checkpoint.at(block.prefix + name));
    };
    for (const char* norm : {"input_layernorm", "pre_feedforward_layernorm", "pre_feedforward_layernorm_2"})
      EXPECT_NE(job.dense(fmt::format("{}.{}.weight", block.prefix, norm)),
                stored(fmt::format(".{}.weight", norm)))
          << norm << ": without a fold there is nothing to see";
    for (const char* kept :
         {".router.proj.weight", ".router.scale", ".router.per_expert_scale", ".layer_scalar",
          ".post_attention_layernorm.weight", ".post_feedforward_layernorm.weight",
          ".post_feedforward_layernorm_1.weight", ".post_feedforward_layernorm_2.weight"})
      EXPECT_EQ(job.dense(block.prefix + kept), stored(kept)) << kept;
    const std::string& output = linear_named(block, "o_proj").module;
    EXPECT_EQ(job.output.quantized.at(output).codes, rounded.output.quantized.at(output).codes);
  }
}

// A block that reads the pages of another one sees those of its own samples, however many are run at once.
TEST(BlockForms, BlocksThatSharePagesSeeTheirOwnSamples) {
  ScratchSharedGemma4 model;
  model.add_embedding();
  make_noisy(model);
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  CalibrationSet samples = some_samples(4, 32);
  for (std::vector<std::int32_t>& ids : samples.samples)
    for (std::int32_t& id : ids) id %= 32;
  std::map<std::int64_t, CapturedOutput> outputs;
  for (const std::int64_t chunk : {32, 128}) {
    Plan plan = make_plan(
        Recipe::parse("method: gptq\nscheme: w4a16_g8_sym\ncalibration: {sequence_length: 32}\n", "r.yaml"),
        checkpoint, spec, Compute::kFloat32, 1, 0);
    plan.chunk_tokens = chunk;
    run_pipeline(plan, checkpoint, spec, samples, *make_cpu_backend(2), outputs[chunk], {});
  }
  const Job rounded("method: rtn\nscheme: w4a16_g8_sym\n", checkpoint, spec);
  for (const char* name : {"o_proj", "down_proj", "per_layer_input_gate", "per_layer_projection"}) {
    const std::string module = linear_named(spec.blocks[1], name).module;
    const auto &one = outputs.at(32).quantized.at(module).codes,
               &all = outputs.at(128).quantized.at(module).codes;
    std::size_t differing = 0;
    for (std::size_t i = 0; i < one.size(); ++i) differing += one[i] != all[i] ? 1 : 0;
    EXPECT_LE(differing, one.size() / 100) << module << ": sums in FP64 differ by how they are cut";
    EXPECT_NE(one, rounded.output.quantized.at(module).codes) << module;
  }
}

// Behind a norm no output can make up for what was lost, so no second model runs for it.
TEST(BlockForms, NothingIsTakenBackThroughANorm) {
  const ScratchOlmo2 behind;
  const ScratchModel before;
  const auto plan_of = [](const std::string& recipe, const Checkpoint& checkpoint) {
    return make_plan(Recipe::parse(recipe, "r.yaml"), checkpoint, ModelSpec::read(checkpoint),
                     Compute::kFloat32, 1, 0);
  };
  const std::string both =
      "method: [awq, gptq]\nscheme: w4a16_g8_asym\nignore: [lm_head]\n"
      "calibration: {sequence_length: 24}\n";
  EXPECT_TRUE(takes_back_upstream(plan_of(both, before.open())));
  const Plan quiet = plan_of(both, behind.open()),
             asked = plan_of(both + "gptq: {upstream_share: 0.5}\n", behind.open());
  EXPECT_FALSE(takes_back_upstream(quiet) || takes_back_upstream(asked));
  EXPECT_EQ(quiet.warnings.size(), 1u);  // of the scales
  EXPECT_THAT(asked.warnings.back(), ::testing::HasSubstr("gptq.upstream_share: every output passes a norm"));
}

// What no expert is calibrated for is refused, by the block that has experts.
TEST(BlockForms, WhatNoMixtureIsCalibratedForIsRefused) {
  const ScratchMixture model;
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const Job job("method: rtn\nscheme: w4a16_g8_sym\n", checkpoint, spec);
  for (const BlockSpec& block : spec.blocks)
    for (const LinearSpec& linear : block.linears)
      EXPECT_EQ(job.output.quantized.count(linear.module), linear.quantizable ? 1u : 0u) << linear.module;
  for (const auto& [recipe, asked] :
       {std::pair{"method: gptq\nkv_cache: {dtype: fp8}\n", "no quantized KV cache"},
        {"method: rtn\nkv_cache: {dtype: fp8}\n", "no quantized KV cache"}}) {
    const std::string text =
        std::string(recipe) + "scheme: w4a16_g8_sym\ncalibration: {sequence_length: 24}\n";
    EXPECT_THAT(
        [&] { make_plan(Recipe::parse(text, "r.yaml"), checkpoint, spec, Compute::kFloat32, 1, 0); },
        ::testing::ThrowsMessage<Error>(::testing::AllOf(
            ::testing::HasSubstr("model.layers.0 has a mixture of experts"), ::testing::HasSubstr(asked))))
        << recipe;
  }
}

// What a recipe leaves alone keeps its bytes, so its input can't be scaled.
TEST(BlockForms, IgnoredReadersKeepTheirBytes) {
  ScratchModel model;
  make_noisy(model);
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const Job job((std::string(kAwqInForms) + "ignore: ['re:.*gate_proj']\n").c_str(), checkpoint, spec);
  for (const BlockSpec& block : spec.blocks) {
    const Moved found = moved(job, checkpoint, block);
    EXPECT_EQ(found.gain, 0);
    EXPECT_EQ(found.product, 0);
  }
}

TEST(BlockForms, NoRecipeQuantizesWhatIsNeverQuantized) {
  ScratchModel model;
  make_noisy(model);
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = with_router(checkpoint);
  EXPECT_EQ(spec.never_quantized().size(), 2u);
  const Plan plan =
      make_plan(Recipe::parse(std::string(kAwqInForms) +
                                  "overrides: [{match: 're:.*gate_proj', scheme: w8a16_g8_sym}]\n",
                              "r.yaml"),
                checkpoint, spec, Compute::kFloat32, 1, 0);
  EXPECT_EQ(plan.warnings,
            std::vector<std::string>{"overrides: 're:.*gate_proj' names "
                                     "model.layers.0.mlp.gate_proj, which is never quantized"});
  EXPECT_EQ(plan.modules.size(), 12u);
  for (const BlockSpec& block : spec.blocks) {
    const std::string& gate = linear_named(block, "gate_proj").module;
    EXPECT_NE(std::find(plan.ignored.begin(), plan.ignored.end(), gate), plan.ignored.end()) << gate;
  }
}

// q and k of attention and gate of the MLP read one norm: its scale is that of all of them, once.
TEST(BlockForms, MixersSideBySideShareTheScaleOfTheirNorm) {
  ScratchCohere2 model;
  make_noisy(model);
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = with_router(checkpoint);
  for (const char* recipe : {kAwqInForms,
                             "method: smoothquant\nscheme: w8a8_channel_sym\nsmoothquant: {alpha: 0.5}\n"
                             "calibration: {sequence_length: 24}\n"}) {
    SCOPED_TRACE(recipe);
    const Job job(recipe, checkpoint, spec);
    EXPECT_EQ(job.output.quantized.size(), 2 * 6u);
    for (const BlockSpec& block : spec.blocks) {
      const Moved found = moved(job, checkpoint, block, "input_layernorm");
      EXPECT_GT(found.gain, 0.1) << "without a fold there is nothing to see";
      EXPECT_LT(found.product, 4 * 0x1p-24) << "one division and two products, of 24 bits";
    }
  }
}

// What nothing rounds is what it was: 8 bits for each weight of a channel, folds included, lose little.
TEST(BlockForms, MixersSideBySideAreCalibratedByEveryMethod) {
  ScratchCohere2 model;
  make_noisy(model);
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  for (const char* recipe :
       {kGptqInForms, kAwqInForms,
        "method: [awq, gptq]\nscheme: w4a16_g8_asym\ncalibration: {sequence_length: 24}\n"}) {
    SCOPED_TRACE(recipe);
    const Job job(recipe, checkpoint, spec);
    EXPECT_EQ(job.output.quantized.size(), 2 * 7u);
    EXPECT_FALSE(takes_back_upstream(
        make_plan(Recipe::parse(recipe, "r.yaml"), checkpoint, spec, Compute::kFloat32, 1, 0)));
  }
}

constexpr const char* kSmoothInForms =
    "method: smoothquant\nscheme: w8a8_channel_sym\nsmoothquant: {alpha: 0.5}\n"
    "calibration: {sequence_length: 24}\n";

// A scale leaves a norm of 1 + w as 1 + w' = (1 + w) / s. AWQ leaves the norm of q, k and v as it is.
TEST(BlockForms, ScalesLeaveNormsOfOnePlusWhatIsStored) {
  ScratchGemma3 model;
  make_noisy(model);
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = with_router(checkpoint);
  for (const char* recipe : {kAwqInForms, kSmoothInForms}) {
    SCOPED_TRACE(recipe);
    const Job job(recipe, checkpoint, spec);
    for (const BlockSpec& block : spec.blocks) {
      const Moved found = moved(job, checkpoint, block, "pre_feedforward_layernorm");
      EXPECT_GT(found.gain, 0.1) << "without a fold there is nothing to see";
      EXPECT_LT(found.product, 8 * 0x1p-24) << "a sum, a division and two products, of 24 bits";
      const std::string before_attention = block.at(norm_named(block, "input_layernorm")).gain.tensor;
      EXPECT_EQ(job.output.dense.contains(before_attention) &&
                    job.dense(before_attention) != checkpoint.read_float32(checkpoint.at(before_attention)),
                recipe == kSmoothInForms);
    }
  }
}

TEST(BlockForms, ThePlanSaysWhatAwqLeaves) {
  ScratchGemma3 model;
  make_noisy(model);
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const auto warnings = [&](const char* recipe) {
    return make_plan(Recipe::parse(recipe, "r.yaml"), checkpoint, spec, Compute::kFloat32, 1, 0).warnings;
  };
  EXPECT_THAT(warnings(kAwqInForms),
              ::testing::Contains(::testing::HasSubstr("moves no scale out of x_attn")));
  EXPECT_THAT(warnings(kSmoothInForms), ::testing::Not(::testing::Contains(::testing::HasSubstr("x_attn"))));
}

}  // namespace
}  // namespace llmq

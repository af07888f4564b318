// Models with gated delta nets through the methods: which linears are rounded, what keeps its bytes, and that
// a scale moved into a norm reaches the readers that stay dense.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "captured_output.h"
#include "support/named_parts.h"
#include "tests/unit/model/scratch_golden.h"

namespace llmq {
namespace {

struct HybridJob {
  CapturedOutput output;
  QuantizeReport report;
  HybridJob(const std::string& recipe, const Checkpoint& checkpoint, const ModelSpec& spec, int threads = 2) {
    CalibrationSet samples = some_samples(4, 24);
    for (std::vector<std::int32_t>& ids : samples.samples)
      for (std::int32_t& id : ids) id %= static_cast<std::int32_t>(spec.vocab_size);
    const Plan plan = make_plan(Recipe::parse(recipe, "r.yaml"), checkpoint, spec, Compute::kFloat32, 1, 0);
    report = run_pipeline(plan, checkpoint, spec, samples, *make_cpu_backend(threads), output, {});
  }
};

constexpr const char* kHybridRtn = "method: rtn\nscheme: w4a16_g4_sym\nignore: [lm_head]\n";
constexpr const char* kHybridGptq =
    "method: gptq\nscheme: w4a16_g4_sym\nignore: [lm_head]\ncalibration: {samples: 4, sequence_length: 24}\n";
constexpr const char* kHybridAwq =
    "method: awq\nscheme: w4a16_g4_asym\nignore: [lm_head]\nawq: {grid: 5, clip: false}\n"
    "calibration: {samples: 4, sequence_length: 24}\n";

std::vector<float> values_of(const CapturedOutput::Dense& stored) {
  std::vector<float> values(static_cast<std::size_t>(stored.shape.elements()));
  to_float32(TensorView(stored.bytes.data(), stored.dtype, stored.shape), values);
  return values;
}

// What is no linear of the blocks, or one that is never quantized, and not of a fold.
bool keeps_bytes(const std::string& tensor) {
  return tensor.find("conv1d") != std::string::npos || tensor.ends_with("A_log") ||
         tensor.ends_with("dt_bias") || tensor.ends_with("linear_attn.norm.weight") ||
         tensor.find("_norm.weight") != std::string::npos || tensor.starts_with("mtp.") ||
         tensor.find("visual") != std::string::npos;
}

TEST(RecurrentForms, LinearsAreRoundedAndTheRestKeepsItsBytes) {
  for (const char* name : {"qwen3_next", "qwen3_5_text", "qwen3_5_moe"})
    for (const char* recipe : {kHybridRtn, kHybridGptq}) {
      SCOPED_TRACE(std::string(name) + " " + recipe);
      const ScratchGolden model(name);
      const Checkpoint checkpoint = model.open();
      const ModelSpec spec = ModelSpec::read(checkpoint);
      const HybridJob job(recipe, checkpoint, spec);
      for (const BlockSpec& block : spec.blocks)
        for (const LinearSpec& linear : block.linears)
          EXPECT_EQ(job.output.quantized.count(linear.module), linear.quantizable ? 1u : 0u) << linear.module;
      int kept = 0;
      for (const StoredTensor& tensor : checkpoint.tensors()) {
        if (!keeps_bytes(tensor.name)) continue;
        ++kept;
        const auto* const bytes = tensor.view.as<const std::byte>();
        EXPECT_EQ(job.output.dense.at(tensor.name).bytes,
                  std::vector<std::byte>(bytes, bytes + tensor.view.bytes()))
            << tensor.name;
      }
      EXPECT_GE(kept, 6);
    }
}

// The sums of the inputs behind the delta net are those of the rows that it makes, one sample after another.
TEST(RecurrentForms, CalibrationDoesNotDependOnItsThreads) {
  const ScratchGolden model("qwen3_5_text");
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  for (const char* recipe : {kHybridGptq, kHybridAwq}) {
    const HybridJob one(recipe, checkpoint, spec, 1), three(recipe, checkpoint, spec, 3);
    EXPECT_EQ(one.output.dense, three.output.dense);
    for (const auto& [module, matrix] : one.output.quantized)
      EXPECT_EQ(matrix.codes, three.output.quantized.at(module).codes) << module;
  }
}

// The gain of the norm before times the columns of each dense reader is what it was.
TEST(RecurrentForms, ScalesReachTheReadersThatStayDense) {
  const ScratchGolden model("qwen3_5_text");
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const HybridJob job(kHybridAwq, checkpoint, spec);
  const BlockSpec& block = spec.blocks[0];
  const NormSpec& norm = block.at(norm_named(block, "input_layernorm"));
  const auto gains_of = [&](std::vector<float> stored) {
    for (float& value : stored) value = norm.multiplier(value);
    return stored;
  };
  const std::vector<float> before = gains_of(checkpoint.read_float32(checkpoint.at(norm.gain.tensor))),
                           after = gains_of(values_of(job.output.dense.at(norm.gain.tensor)));
  double most = 0;
  for (std::size_t c = 0; c < before.size(); ++c)
    most = std::max(most, std::fabs(std::log(static_cast<double>(after[c]) / before[c])));
  EXPECT_GT(most, 0.05) << "without a fold there is nothing to see";
  for (const char* reader : {"in_proj_a", "in_proj_b"}) {
    const std::string& tensor = linear_named(block, reader).weight.tensor;
    const std::vector<float> old = checkpoint.read_float32(checkpoint.at(tensor)),
                             now = values_of(job.output.dense.at(tensor));
    for (std::size_t i = 0; i < old.size(); ++i) {
      const std::size_t c = i % before.size();
      ASSERT_NEAR(static_cast<double>(now[i]) * after[c] / (static_cast<double>(old[i]) * before[c]), 1,
                  16 * 0x1p-24)  // the offset of the gain costs some of its 24 bits
          << reader << " " << i;
    }
  }
  ASSERT_FALSE(job.report.warnings.empty());
  EXPECT_THAT(job.report.warnings.back(), ::testing::HasSubstr("moves no scale out of x_out"));
}

}  // namespace
}  // namespace llmq

// The measuring pass of mixed precision over ranks: each figure is that of one process to the last bit,
// whatever the number of ranks and threads, and whether or not a rank has samples.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "noisy_mixture.h"
#include "quant/mixed_precision/sensitivity.h"
#include "ranks/agreement.h"
#include "ranks/thread_ranks.h"

namespace llmq {
namespace {

constexpr const char* kWholeSchemes =
    "target_bits: 5\nmixed: {schemes: [w4a16_g64_sym, w4a16_g32_sym, nvfp4a16, fp8]}\n";

struct MeasuredModel {
  Path path;
  std::string recipe;
  CalibrationSet samples;
  std::int64_t chunk_tokens = 0;
};

std::string measured_by(const MeasuredModel& model, Ranks& ranks, int threads) {
  const Checkpoint checkpoint = open_checkpoint(system_io(), model.path.string());
  const ModelSpec spec = ModelSpec::read(checkpoint);
  Plan plan =
      make_plan(Recipe::parse(model.recipe, "r.yaml"), checkpoint, spec, Compute::kFloat32, threads, 0);
  plan.chunk_tokens = model.chunk_tokens;
  if (plan.experts_at_once != 0) plan.experts_at_once = 2 + ranks.rank();
  return measured_json(
             measure_candidates(plan, checkpoint, spec, model.samples, *make_cpu_backend(threads), {}, ranks))
      .dump();
}

// Of one process with one thread, and then of as many ranks as `most`, each of which knows them.
void expect_the_figures_of_one(const MeasuredModel& model, int most) {
  SCOPED_TRACE(model.recipe);
  const std::string once = measured_by(model, alone(), 1);
  for (int count = 2; count <= most; ++count)
    for (const int threads : {1, 2})
      run_as_ranks(count, [&](Ranks& ranks) {
        EXPECT_EQ(measured_by(model, ranks, threads), once)
            << "rank " << ranks.rank() << " of " << count << ", " << threads << " threads";
      });
}

// Three chunks of one sample, so that one of four ranks has none.
TEST(MixedRanks, BitsOfOneSchemeAreMeasuredAsByOneProcess) {
  expect_the_figures_of_one(
      {stories().path(), "method: gptq\nscheme: w4a16_g64_asym\ntarget_bits: 5\n", some_samples(3, 40), 40},
      4);
}

TEST(MixedRanks, SoAreWholeSchemesAsTheRunRounds) {
  for (const char* method : {"method: gptq\n", "method: awq\n"})
    expect_the_figures_of_one(
        {stories().path(), std::string(method) + kWholeSchemes, some_samples(3, 40), 40}, 4);
}

// No two ranks have room for as many experts, and no row comes to one of them.
TEST(MixedRanks, SoAreExpertsOfAMixture) {
  NoisyMixture model;
  model.starve_expert_0();
  const Path path = model.open().path();
  for (const char* recipe :
       {"method: rtn\nscheme: w4a16_g8_sym\ntarget_bits: 7\nmixed: {bits: [3, 4, 8, 16], samples: 4}\n"
        "calibration: {samples: 4, sequence_length: 24}\n",
        "method: gptq\ntarget_bits: 7\nmixed: {schemes: [w4a16_g8_sym, w8a16_g8_sym, dense], samples: 4}\n"
        "calibration: {samples: 4, sequence_length: 24}\n"})
    expect_the_figures_of_one({path, recipe, expert_samples(), kExpertTokens}, 4);
}

// A stream for each fork, as nearly the same number on every rank as can be.
TEST(MixedRanks, ForksAreDealtEvenly) {
  EXPECT_EQ(probe_streams(8, 1), 9);
  EXPECT_EQ(probe_streams(8, 2), 5);
  EXPECT_EQ(probe_streams(8, 3), 4);
  EXPECT_EQ(probe_streams(8, 8), 2);
  EXPECT_EQ(probe_streams(8, 9), 2);
  const ModelSpec spec = ModelSpec::read(stories());
  EXPECT_EQ(groups_of(spec), 8);
  const std::vector<std::uint64_t> groups = group_weights(spec.blocks[0]);
  EXPECT_EQ(groups, (std::vector<std::uint64_t>{128 * (128 + 64 + 64), 128 * 128, 2 * 128 * 384, 128 * 384}));
}

// What all of them see is said once for all.
TEST(MixedRanks, ActivationsThatAreNotFiniteEndAllAlike) {
  NoisyMixture model;
  model.tensors["model.layers.0.input_layernorm.weight"] =
      scratch_tensor("F32", {ScratchMixture::kHidden}, std::vector<float>(ScratchMixture::kHidden, 3e38f));
  const MeasuredModel measured{
      model.open().path(),
      "method: rtn\nscheme: w4a16_g8_sym\ntarget_bits: 7\nmixed: {bits: [3, 4, 8, 16], samples: 4}\n"
      "calibration: {samples: 4, sequence_length: 24}\n",
      expert_samples(), kExpertTokens};
  std::atomic<int> told = 0;
  run_as_ranks(3, [&](Ranks& ranks) {
    try {
      measured_by(measured, ranks, 1);
    } catch (const RanksRefused& refused) {
      EXPECT_THAT(refused.what(), ::testing::HasSubstr("are not finite"));
      ++told;
    }
  });
  EXPECT_EQ(told, 3);
}

}  // namespace
}  // namespace llmq

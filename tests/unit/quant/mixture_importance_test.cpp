// The importance matrix of a mixture: each expert's own rows, and how many those were.
#include <gtest/gtest.h>

#include "model/gguf/gguf_names.h"
#include "noisy_mixture.h"
#include "quant/pipeline/imatrix_collection.h"

namespace llmq {
namespace {

Imatrix importance_of(const Checkpoint& checkpoint, int threads, std::int64_t chunk) {
  const std::shared_ptr<Backend> backend = make_cpu_backend(threads);
  return collect_importance(checkpoint, ModelSpec::read(checkpoint), expert_samples(), *backend,
                            {Compute::kFloat32, chunk, true, {}});
}

// Sums of this model are those of few rows, which FP32 holds to 64 units of 2^-24.
void expect_diagonal(const ImatrixEntry& entry, std::size_t matrix, const InputStats& stats) {
  const auto width = static_cast<std::size_t>(stats.channels());
  ASSERT_GE(entry.sums.size(), (matrix + 1) * width);
  for (std::size_t k = 0; k < width; ++k) {
    const auto channel = static_cast<std::int64_t>(k);
    EXPECT_NEAR(entry.sums[matrix * width + k], stats.gram_at(channel, channel),
                66 * 0x1p-24 * stats.gram_at(channel, channel));
  }
}

TEST(MixtureImportance, OfEachExpertItsOwnRowsCount) {
  NoisyMixture model;
  model.starve_expert_0();
  BehindAttention behind(model);
  const Imatrix imatrix = importance_of(behind.checkpoint, 1, kExpertTokens);
  const std::vector<std::int64_t> rows = behind.stream.routed_rows(0, behind.weights);
  ASSERT_EQ(rows.at(0), 0) << "the first is starved";
  const MixtureSpec& mixture = behind.mixture();
  for (const auto& [name, input] : {std::pair{"ffn_gate_exps", ExpertInput::kOfGateAndUp},
                                    {"ffn_up_exps", ExpertInput::kOfGateAndUp},
                                    {"ffn_down_exps", ExpertInput::kOfOutput}}) {
    SCOPED_TRACE(name);
    const ImatrixEntry& entry = imatrix.entries.at(fmt::format("blk.0.{}.weight", name));
    ASSERT_EQ(entry.counts.size(), rows.size());
    for (std::size_t e = 0; e < rows.size(); ++e) {
      EXPECT_EQ(entry.counts[e], static_cast<float>(rows[e]));
      const SeenExpert seen{&mixture.experts[e], e, rows[e]};
      expect_diagonal(entry, e,
                      behind.stream.expert_statistics(0, behind.weights, {&seen, 1}, input).front());
    }
  }
  EXPECT_EQ(imatrix.entries.at("blk.0.ffn_down_shexp.weight").counts,
            std::vector<float>{static_cast<float>(behind.stream.tokens())});
  expect_diagonal(imatrix.entries.at("blk.0.ffn_up_shexp.weight"), 0,
                  behind.stream.statistics(mixture.input, 0, behind.weights, Samples::kAll));
  const std::vector<float> of_starved = imatrix.importance("blk.0.ffn_up_exps.weight");
  for (std::size_t k = 0; k < ScratchMixture::kHidden; ++k) EXPECT_EQ(of_starved[k], 1) << "nothing is known";
}

TEST(MixtureImportance, DoesNotDependOnThreadsOrChunks) {
  const NoisyMixture model;
  const Checkpoint checkpoint = model.open();
  const Imatrix one = importance_of(checkpoint, 1, kExpertTokens),
                other = importance_of(checkpoint, 3, kExpertTokens * kExpertSamples);
  ASSERT_EQ(one.entries.size(), 2u * (4 + 3 + 3 + 2))
      << "attention, experts, the shared one, router and gate";
  for (const auto& [name, entry] : one.entries) {
    EXPECT_EQ(entry.sums, other.entries.at(name).sums) << name;
    EXPECT_EQ(entry.counts, other.entries.at(name).counts) << name;
  }
}

}  // namespace
}  // namespace llmq

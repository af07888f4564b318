// The importance of what a GGUF has in another order, or in several tensors: in the order of its columns, and
// of each of them.
#include <gtest/gtest.h>

#include "noisy_mixture.h"
#include "quant/pipeline/imatrix_collection.h"
#include "tests/unit/model/scratch_golden.h"

namespace llmq {
namespace {

Imatrix importance_of_golden(const Checkpoint& checkpoint) {
  const std::shared_ptr<Backend> backend = make_cpu_backend(1);
  return collect_importance(checkpoint, ModelSpec::read(checkpoint), expert_samples(), *backend,
                            {Compute::kFloat32, kExpertTokens, true, {}});
}

TEST(GgufImportance, ColumnsOfADeltaNetsOutputGoInTurn) {
  const ScratchGolden model("qwen3_5_text");
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const std::shared_ptr<Backend> backend = make_cpu_backend(1);
  const BlockWeights weights =
      load_block(*backend, Compute::kFloat32, LinearSource::open(checkpoint), spec.blocks[0]);
  const ForwardContext context = make_forward_context(spec, *backend, Compute::kFloat32, kExpertTokens);
  const CalibrationSet samples = expert_samples();
  ActivationStream stream(context, samples, kExpertTokens, false);
  stream.embed(checkpoint, samples);
  const DeltaSpec& delta = *spec.blocks[0].delta();
  const InputStats stats = stream.statistics(delta.inner, 0, weights, Samples::kAll);
  const Imatrix imatrix = importance_of_golden(checkpoint);
  const ImatrixEntry& entry = imatrix.entries.at("blk.0.ssm_out.weight");
  constexpr std::int64_t kKeyHeads = 2, kOfKey = 2, kWidth = 12;
  ASSERT_EQ(entry.sums.size(), static_cast<std::size_t>(kKeyHeads * kOfKey * kWidth));
  for (std::int64_t key = 0; key < kKeyHeads; ++key)
    for (std::int64_t own = 0; own < kOfKey; ++own)
      for (std::int64_t i = 0; i < kWidth; ++i) {
        const std::int64_t there = (own * kKeyHeads + key) * kWidth + i,
                           here = (key * kOfKey + own) * kWidth + i;
        EXPECT_NEAR(entry.sums[static_cast<std::size_t>(there)], stats.gram_at(here, here),
                    66 * 0x1p-24 * stats.gram_at(here, here));
      }
}

TEST(GgufImportance, EachTensorThatALinearIsHasIt) {
  const Imatrix next = importance_of_golden(ScratchGolden("qwen3_next").open());
  EXPECT_EQ(next.entries.at("blk.0.attn_gate.weight").sums, next.entries.at("blk.0.attn_qkv.weight").sums);
  const Imatrix latents = importance_of_golden(ScratchGolden("deepseek_v3").open());
  EXPECT_EQ(latents.entries.at("blk.0.attn_v_b.weight").counts.size(), 4u) << "a matrix of each head";
  EXPECT_EQ(latents.entries.at("blk.0.attn_v_b.weight").sums.size(), 4u * 16);
  EXPECT_EQ(latents.entries.count("blk.0.attn_k_b.weight"), 0u) << "whose columns are channels of queries";
}

}  // namespace
}  // namespace llmq

// A gated delta net where Llama has attention, in some blocks: Qwen3-Next and Qwen3.5.
#pragma once
#include <cstdint>
#include <vector>

#include "model/block_builder.h"
#include "model/families/family.h"

namespace llmq {

struct LlamaDelta {
  DeltaHeads heads;
  std::int64_t taps = 4;     // rows that the convolution sees
  bool grouped = false;      // in_proj_qkvz and in_proj_ba, key head by key head; else four linears
  std::vector<bool> blocks;  // which of them; the others have attention
};

// linear_* and, where layer_types is absent, full_attention_interval. A model of such blocks alone is
// refused.
LlamaDelta read_delta(ConfigFields& config, const ModelSpec& spec);

DeltaSpec delta_of(const LlamaDelta& delta, BlockBuilder& builder, std::int64_t hidden, float eps);

}  // namespace llmq

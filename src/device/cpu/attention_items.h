// Attention cut into items for the pool: tiles of positions of one KV head.
#pragma once
#include <span>

#include "device/cpu/cpu_work.h"

namespace llmq {

// Backend::attention.
void attend(const CpuWork& work, const TensorView& out, const TensorView& q, const KvPages& pages,
            std::span<const SequenceRows> sequences, const AttentionProblem& problem);

}  // namespace llmq

// What attention and paged keys and values mean; position by position, pages as [blocks, block_size,
// kv_heads, head_dim].
#pragma once
#include <cmath>
#include <span>

#include "device/backend.h"

namespace llmq::reference {

inline double softcapped(double x, double cap) { return cap * std::tanh(x / cap); }

// Backend::store_kv, load_kv and attention.
void store_kv(const KvPages& pages, const TensorView& k, const TensorView& v,
              std::span<const std::int64_t> slots);
void load_kv(const TensorView& k, const TensorView& v, const KvPages& pages,
             std::span<const std::int64_t> slots);
void attend(const TensorView& out, const TensorView& q, const KvPages& pages,
            std::span<const SequenceRows> sequences, const AttentionProblem& problem);

}  // namespace llmq::reference

// Attention over paged keys and values on a CUDA device, and the way of keys and values to and from the
// pages.
#pragma once
#include <span>

#include "device/backend.h"
#include "device/cuda/cuda_work.h"

namespace llmq {

// Backend::attention, by tiles (kernels/cuda/tile_attention.h) where outputs are BF16, else in FP32.
void attend(CudaWork& work, const TensorView& out, const TensorView& q, const KvPages& pages,
            std::span<const SequenceRows> sequences, const AttentionProblem& problem);
// Backend::store_kv, `to_pages`, or load_kv.
void move_kv(CudaWork& work, const char* operation, const KvPages& pages, const TensorView& k,
             const TensorView& v, std::span<const std::int64_t> slots, bool to_pages);

}  // namespace llmq

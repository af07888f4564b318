// In what 8-bit type a checkpoint asks loaders to keep keys and values. A scale per layer goes with it:
// input_scale() of the largest magnitude (tensor/quantized_matrix.h); that of the keys is what the cache
// holds, after rotation.
#pragma once
#include <cstdint>

namespace llmq {

enum class KvCacheType : std::uint8_t { kFloat8, kInt8 };

}  // namespace llmq

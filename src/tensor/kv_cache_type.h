// In what 8-bit type a checkpoint asks loaders to keep keys and values, and the scale per layer that goes with it.
//
//   kFloat8: E4M3, scale = max|x| / 448     kInt8: symmetric in -128 .. 127, scale = max|x| / 127.5
// Both are compressed-tensors' conventions; x of the keys is what the cache holds, after rotation.
#pragma once
#include <cstdint>

namespace llmq {

enum class KvCacheType : std::uint8_t { kFloat8, kInt8 };

// 1 where nothing but zeros was seen: any scale stores them.
inline float kv_cache_scale(KvCacheType type, float largest) {
  return largest == 0 ? 1.0f : largest / (type == KvCacheType::kFloat8 ? 448.0f : 127.5f);
}

}  // namespace llmq

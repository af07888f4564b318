// The magnitude of the code nearest to one that is divided by its scale, without branches: loops over
// neighbours become vectors.
//
//   E2M1: steps of 0.5 below 2, of 1 below 4, of 2 from there on, 6 at most. What is added and taken away
//         again rounds to integers, ties to even, which are the even codes (signed_e2m1_code()).
//   E4M3: to_float8()
#pragma once
#include "base/half.h"
#include "tensor/block_scales.h"

namespace llmq {

template <WeightType kType>
inline float rounded_magnitude(float size) {
  if constexpr (kType == WeightType::kFloat4) {
    constexpr float kIntegers = 0x1.8p23f;
    const float step = size < 2 ? 0.5f : size < 4 ? 1.0f : 2.0f;
    const float least = size < 8 ? size : 8.0f;
    const float value = ((least / step + kIntegers) - kIntegers) * step;
    return value > kE2M1Top ? kE2M1Top : value;
  } else {
    return to_float(to_float8(size));
  }
}

}  // namespace llmq

// Rounding to nearest on one group of weights, elementwise in plain IEEE operations: a division, no fused
// multiply-add, so that codes are the same at every level. Minimum and maximum do not depend on an order.
#pragma once
#include "kernels/common/tile_arithmetic.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/ops/rows.h"

namespace llmq {

// Its value in units of the scale: code - zero.
template <class V>
LLMQ_INLINE typename V::F steps_of(typename V::F w, CodeGrid grid) {
  return code_steps<V>(w, V::set(grid.scale), V::set(grid.zero), grid.top);
}

template <class V>
LeastMost least_most(const float* w, int64_t n) {
  auto least = V::set(0.0f), most = V::set(0.0f);
  by_lanes<V>(n, [&](int64_t i, auto count) LLMQ_LAMBDA_INLINE {
    const auto v = read<V>(w + i, count);  // lanes beyond the end read 0
    least = V::min(least, v);
    most = V::max(most, v);
  });
  return {-V::greatest(V::sub(V::set(0.0f), least)), V::greatest(most)};
}

template <class V>
void scale_channels(float* scaled, const float* w, const float* s, int64_t n) {
  by_lanes<V>(n, [&](int64_t i, auto count) LLMQ_LAMBDA_INLINE {
    write<V>(scaled + i, V::mul(read<V>(w + i, count), read<V>(s + i, count)), count);
  });
}

template <class V>
void round_difference(float* difference, const float* w, int64_t n, CodeGrid grid) {
  by_lanes<V>(n, [&](int64_t i, auto count) LLMQ_LAMBDA_INLINE {
    const auto v = read<V>(w + i, count);
    write<V>(difference + i, V::sub(V::mul(steps_of<V>(v, grid), V::set(grid.scale)), v), count);
  });
}

template <class V>
void scaled_difference(float* difference, const float* scaled, const float* inverse, const float* w,
                       int64_t n, CodeGrid grid) {
  by_lanes<V>(n, [&](int64_t i, auto count) LLMQ_LAMBDA_INLINE {
    const auto value = V::mul(steps_of<V>(read<V>(scaled + i, count), grid), V::set(grid.scale));
    write<V>(difference + i, V::sub(V::mul(value, read<V>(inverse + i, count)), read<V>(w + i, count)),
             count);
  });
}

}  // namespace llmq

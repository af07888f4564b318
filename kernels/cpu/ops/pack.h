// Panels of B (cpu_kernels.h) from rows that are columns of B (a weight, keys) or rows of B (values,
// activations).
#pragma once
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/ops/unroll.h"

namespace llmq {

template <class V, class T>
void pack_panel(void* panel, const void* source, int64_t row, int64_t columns, int64_t depth) {
  constexpr int kPanel = V::kPanelVectors * V::kLanes;
  constexpr int kPerUnit = 4 / sizeof(T);
  const T* const from = static_cast<const T*>(source);
  const int64_t whole = depth / kPerUnit, units = (depth + kPerUnit - 1) / kPerUnit;
  uint32_t* const to = static_cast<uint32_t*>(panel);
  for (int64_t n = 0; n < kPanel; ++n) {
    const unsigned char* at = reinterpret_cast<const unsigned char*>(from + n * row);
    for (int64_t u = 0; u < units; ++u) {
      uint32_t unit = 0;
      if (n < columns) __builtin_memcpy(&unit, at + 4 * u, u < whole ? 4 : sizeof(T));
      to[u * kPanel + n] = unit;
    }
  }
}

template <class V, class T>
void pack_panel_straight(void* panel, const void* source, int64_t row, int64_t columns, int64_t depth) {
  constexpr int kPanel = V::kPanelVectors * V::kLanes;
  constexpr int kPerUnit = 4 / sizeof(T);
  const T* const from = static_cast<const T*>(source);
  T* const to = static_cast<T*>(panel);
  const int64_t padded = (depth + kPerUnit - 1) / kPerUnit * kPerUnit;
  for (int64_t k = 0; k < padded; ++k)
    for (int64_t n = 0; n < kPanel; ++n)
      to[(k / kPerUnit * kPanel + n) * kPerUnit + k % kPerUnit] =
          k < depth && n < columns ? from[k * row + n] : T{};
}

}  // namespace llmq

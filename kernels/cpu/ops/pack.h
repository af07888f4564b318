// Panels of B (cpu_kernels.h) from rows that are columns of B (a weight, keys) or rows of B (values,
// activations).
#pragma once
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/ops/gemm.h"

namespace llmq {

template <class V, class T>
void pack_panel(void* panel, const void* source, int64_t row, int64_t columns, int64_t depth) {
  constexpr int kPanel = V::kPanelVectors * V::kLanes;
  constexpr int kPerUnit = 4 / sizeof(T);
  const T* const from = static_cast<const T*>(source);
  const int64_t whole = depth / kPerUnit, units = (depth + kPerUnit - 1) / kPerUnit;
  uint32_t* const to = static_cast<uint32_t*>(panel);
  for (int64_t n = 0; n < columns; ++n) {
    const unsigned char* const at = reinterpret_cast<const unsigned char*>(from + n * row);
    for (int64_t u = 0; u < whole; ++u) __builtin_memcpy(to + u * kPanel + n, at + 4 * u, 4);
    if (whole < units) to[whole * kPanel + n] = half_unit(at + 4 * whole);
  }
  for (int64_t n = columns; n < kPanel; ++n)
    for (int64_t u = 0; u < units; ++u) to[u * kPanel + n] = 0;
}

// One unit's row of a panel: of FP32 a row of the source, of BF16 two rows interleaved.
template <int Panel>
LLMQ_INLINE void pack_units(float* to, const float* first, const float*, int64_t columns) {
  for (int64_t n = 0; n < columns; ++n) to[n] = first[n];
  for (int64_t n = columns; n < Panel; ++n) to[n] = 0;
}

template <int Panel>
LLMQ_INLINE void pack_units(BFloat16* to, const BFloat16* first, const BFloat16* second, int64_t columns) {
  for (int64_t n = 0; n < columns; ++n) {
    const uint32_t unit = first[n].bits | static_cast<uint32_t>(second == nullptr ? 0 : second[n].bits) << 16;
    __builtin_memcpy(to + 2 * n, &unit, sizeof unit);
  }
  for (int64_t n = 2 * columns; n < 2 * Panel; ++n) to[n] = BFloat16{};
}

template <class V, class T>
void pack_panel_straight(void* panel, const void* source, int64_t row, int64_t columns, int64_t depth) {
  constexpr int kPanel = V::kPanelVectors * V::kLanes;
  constexpr int kPerUnit = 4 / sizeof(T);
  const T* from = static_cast<const T*>(source);
  T* to = static_cast<T*>(panel);
  for (int64_t k = 0; k < depth; k += kPerUnit, from += kPerUnit * row, to += kPerUnit * kPanel) {
    const T* const second = k + 1 < depth ? from + row : nullptr;
    if (columns == kPanel && second != nullptr)  // the common case, with a count the compiler knows
      pack_units<kPanel>(to, from, second, kPanel);
    else
      pack_units<kPanel>(to, from, second, columns);
  }
}

}  // namespace llmq

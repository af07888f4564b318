// Panels of B (cpu_kernels.h) from rows that are columns of B (a weight, keys) or rows of B (values,
// activations).
#pragma once
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/ops/gemm.h"

namespace llmq {

// Sixteen rows of sixteen units become columns: blocks of 1, 2, 4 and 8 change places across the diagonal.
typedef uint32_t Units __attribute__((vector_size(64)));

#define LLMQ_TURN(S, LOW, HIGH)                       \
  for (int i = 0; i < 16; ++i) {                      \
    if ((i & (S)) != 0) continue;                     \
    const Units a = r[i], b = r[i + (S)];             \
    r[i] = __builtin_shufflevector(a, b, LOW);        \
    r[i + (S)] = __builtin_shufflevector(a, b, HIGH); \
  }
#define LLMQ_LIST(...) __VA_ARGS__

LLMQ_INLINE void pack_square(uint32_t* to, int64_t to_row, const unsigned char* from, int64_t from_bytes) {
  Units r[16];
  for (int i = 0; i < 16; ++i) __builtin_memcpy(&r[i], from + i * from_bytes, sizeof(Units));
  LLMQ_TURN(1, LLMQ_LIST(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
            LLMQ_LIST(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
  LLMQ_TURN(2, LLMQ_LIST(0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
            LLMQ_LIST(2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
  LLMQ_TURN(4, LLMQ_LIST(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
            LLMQ_LIST(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
  LLMQ_TURN(8, LLMQ_LIST(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
            LLMQ_LIST(8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
  for (int i = 0; i < 16; ++i) __builtin_memcpy(to + i * to_row, &r[i], sizeof(Units));
}

#undef LLMQ_TURN
#undef LLMQ_LIST

template <class V, class T>
void pack_panel(void* panel, const void* source, int64_t row, int64_t columns, int64_t depth) {
  constexpr int kPanel = V::kPanelVectors * V::kLanes;
  constexpr int kPerUnit = 4 / sizeof(T);
  const T* const from = static_cast<const T*>(source);
  const int64_t whole = depth / kPerUnit, units = (depth + kPerUnit - 1) / kPerUnit;
  uint32_t* const to = static_cast<uint32_t*>(panel);
  // In squares where a register holds sixteen units; the rest unit by unit.
  const int64_t square = V::kLanes == 16 ? whole / 16 * 16 : 0, turned = square > 0 ? columns / 16 * 16 : 0;
  if constexpr (V::kLanes == 16)
    for (int64_t n = 0; n < turned; n += 16)
      for (int64_t u = 0; u < square; u += 16)
        pack_square(to + u * kPanel + n, kPanel,
                    reinterpret_cast<const unsigned char*>(from + n * row) + 4 * u,
                    row * static_cast<int64_t>(sizeof(T)));
  for (int64_t n = 0; n < columns; ++n) {
    const unsigned char* const at = reinterpret_cast<const unsigned char*>(from + n * row);
    for (int64_t u = n < turned ? square : 0; u < whole; ++u)
      __builtin_memcpy(to + u * kPanel + n, at + 4 * u, 4);
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

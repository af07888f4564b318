// Numbers to the nearest value of a table (kUnevenValues), and ggml's search for the scale of a sub-block of
// such values.
//
// All values are integers, so that the middles between neighbours are halves of integers: what ggml decides
// by x - lower < upper - x is x < middle, for both differences are exact near a middle. Ties go up. Sources:
// ggml-quants.c (best_index_int8, quantize_row_iq4_nl_impl); every float operation stands in its order.
#pragma once
#include <cstdint>

#include "tensor/ggml_blocks.h"
#include "tensor/ggml_lanes.h"

namespace llmq {

constexpr float table_middle(std::size_t k) {
  return static_cast<float>(kUnevenValues[k] + kUnevenValues[k + 1]) / 2;
}

// The code whose value is nearest.
inline std::uint8_t table_code(float x) {
  int code = 0;
  for (std::size_t k = 0; k + 1 < kUnevenValues.size(); ++k) code += x < table_middle(k) ? 0 : 1;
  return static_cast<std::uint8_t>(code);
}

// The nearest values themselves. Cost: three operations for each of the 15 middles.
inline Lanes table_values(Lanes x) {
  Lanes value = all_lanes(kUnevenValues.front());
  for (std::size_t k = 0; k + 1 < kUnevenValues.size(); ++k)
    value += select(x >= table_middle(k),
                    all_lanes(static_cast<float>(kUnevenValues[k + 1] - kUnevenValues[k])), Lanes{});
  return value;
}

// The scale of 32 numbers: x' = scale * value. Sixteen candidates, of which each gives values and least
// squares then a scale: the largest number's is 127 or, divided by its scale, -134 to -120. 0 where no number
// is above kNoNumbers.
float search_table(const float* x, const float* weight);

}  // namespace llmq

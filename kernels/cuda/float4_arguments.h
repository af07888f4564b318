// What kernels/cuda/float4_linear.h takes, for host code that compiles without CUDA.
#pragma once
#include <stdint.h>

#include "kernels/common/fragment_layout.h"

namespace llmq::cuda {

// Codes of E2M1 as one product of 64 positions takes them: positions are columns, groups of 16 or 32 lie
// within a product.
constexpr FragmentLayout float4_layout(int64_t features, int64_t columns) {
  return {features, columns, columns, 4, 64};
}

// Scales of a word: those of 64 positions, or of 128 where they are exponents, of 32 each.
constexpr int64_t positions_of_scales(bool exponents) { return exponents ? 128 : 64; }
constexpr int64_t words_of_scales(const FragmentLayout& layout, bool exponents) {
  return (layout.positions() + positions_of_scales(exponents) - 1) / positions_of_scales(exponents);
}
// Rows of words of scales start at multiples of 16 bytes.
constexpr int64_t padded_scales(int64_t rows) { return (rows + 3) / 4 * 4; }

// Pointers are of the device, those to words aligned to 16 bytes.
struct Float4Arguments {
  float* y = nullptr;  // [rows, features], rows y_stride apart
  int64_t y_stride = 0;
  // Codes [rows][positions / 8 words], eight to a word as FragmentLayout has them, 0 at the padding; bytes of
  // their scales [words_of_scales][padded_scales(rows)].
  const uint32_t *x = nullptr, *x_scales = nullptr;
  const uint32_t* weight = nullptr;         // float4_layout()
  const uint32_t* weight_scales = nullptr;  // [words_of_scales][padded features]
  const float* bias = nullptr;              // [features] or null
  float factor = 1;
  int64_t rows = 0, features = 0, positions = 0;
  bool exponents = false;  // scales are, else E4M3
};

}  // namespace llmq::cuda

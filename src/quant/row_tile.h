// kTileRows rows of a weight side by side: element (place, row) at place * kTileRows + row, so that one row is
// one lane and its arithmetic does not depend on the rows beside it.
//
//   value = steps * scale,   steps = code - zero,   difference = weight - value
//
// Rows beyond the last are zero.
#pragma once
#include <cstdint>
#include <vector>

#include "tensor/quant_scheme.h"

namespace llmq {

inline constexpr std::int64_t kTileRows = 16;

struct RowTile {
  RowTile(std::int64_t columns, std::int64_t groups)
      : weight(static_cast<std::size_t>(columns * kTileRows)),
        difference(weight.size()),
        steps(weight.size()),
        scale(static_cast<std::size_t>(groups * kTileRows)),
        zero(scale.size()) {}

  float* scale_of(std::int64_t group) { return scale.data() + group * kTileRows; }
  float* zero_of(std::int64_t group) { return zero.data() + group * kTileRows; }

  std::vector<float> weight, difference, steps;  // [places, kTileRows]
  std::vector<float> scale, zero;                // [groups, kTileRows]
};

// Nearest integer, ties to even, for |x| < 2^22; beyond that x itself, near enough to be clamped.
inline float nearest_integer(float x) {
  constexpr float kMagic = 12582912.0f;
  return (x + kMagic) - kMagic;
}

// The steps that code(w) stands for: clamp(round(w / scale) + zero, 0, top) - zero.
inline float steps_of(float w, float scale, float zero, float top) {
  float code = nearest_integer(w / scale) + zero;
  code = code > 0.0f ? code : 0.0f;
  return (code < top ? code : top) - zero;
}

// sum[c][r] += factor * sum over u < depth of a[u * a_row + c] b[u][r], for c < width.
void add_products(float* sum, const float* a, std::int64_t a_row, std::int64_t width, const float* b,
                  std::int64_t depth, float factor);

}  // namespace llmq

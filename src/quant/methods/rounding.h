// Rounding to nearest on one group of weights: range -> stored scale and zero -> codes.
//
//   asymmetric: lo = min(w, 0), hi = max(w, 0), scale = stored((hi - lo) / (2^b - 1)), zero = clamp(round(-lo
//   / scale))
//   symmetric:  scale = stored(2 max|w| / (2^b - 1)), zero = 2^(b-1) (compressed-tensors' convention)
//               code = clamp(round(w / scale) + zero, 0, 2^b - 1)
//   float8:     scale = stored(max|w| / kFloat8Top), code = the E4M3 nearest to w / scale
// round is to nearest, ties to even; the scale is the stored one.
#pragma once
#include <cstdint>

#include "kernels/common/scale_search.h"
#include "tensor/quant_scheme.h"

namespace llmq {

struct GroupRange {
  float low = 0, high = 0;
};  // low <= 0 <= high
struct GroupGrid {
  float scale = 1, zero = 0, top = 15;  // top = 2^b - 1; zero is an integer
  bool float8 = false;
};

GroupRange find_range(const float* weight, std::int64_t count);
GridRule grid_rule(const QuantScheme& scheme);
GroupGrid grid_for(GroupRange range, const QuantScheme& scheme);
void round_codes(const float* weight, std::int64_t count, GroupGrid grid, std::uint8_t* codes);
// difference[k] = value(code(weight[k])) - weight[k]
void round_difference(const float* weight, std::int64_t count, GroupGrid grid, float* difference);
// The same for a weight scaled by s before rounding and by its inverse after: value(code(weight[k] s[k])) /
// s[k] - weight[k], over whole rows of `count` columns in groups of `group`. `scratch` has count elements.
void scaled_difference(const float* weight, std::int64_t count, std::int64_t group, const float* s,
                       const float* inverse, const QuantScheme& scheme, float* scratch, float* difference);

}  // namespace llmq

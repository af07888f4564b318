// Rounding to floats in groups whose scales are no plain numbers (ScaleForm, tensor/block_scales.h): for each
// group the scale whose rounding leaves the least sum of squared errors, each weighed by the importance of
// its column, among
//
//   two levels   compressed-tensors' by the group's largest weight, then the E4M3 numbers beside it: seven
//                above (up to 1.8 times it: 1.5 puts the largest weight on code 4, "four over six") and eight
//                below, which cut it
//   exponents    OCP's, by which the largest E2M1 code has a magnitude of 4 to 8, cut at 6; the one above it,
//                by which nothing is cut; the one below it, for a group with an outlier
//
// in this order where sums are equal. Without a search the scale is compressed-tensors'. A group of zeros has
// the least byte of its rule. What became 0 keeps its sign.
//
// Cost: a rounding of every weight for each candidate: 16, and 3.
#pragma once
#include <cstdint>
#include <span>

#include "base/threads.h"
#include "tensor/quantized_matrix.h"

namespace llmq {

struct FloatGroupRounding {
  bool search = true;
  float global_scale = 0;                  // of two levels; 0: float_group_global() of this weight alone
  std::span<const float> importance = {};  // [columns], not negative; empty: all are alike
};

// The global scale for a weight, or several that share it, with `largest` the largest magnitude in them; the
// power of two below it where that is asked for, so that the largest group has at least half of that range.
float float_group_global(float largest, bool search, bool power_of_two = false);
// That of inputs with `largest` the largest magnitude that calibration saw: all of E4M3's range is theirs.
float float_input_global(float largest, bool power_of_two);
// The largest magnitude that the largest group scale of such a global does not cut.
float float_group_reach(float global);
float largest_magnitude(std::span<const float> weight, ThreadPool& pool);
// `given`, or that of this weight alone where it is 0; 0 for schemes without one.
float global_scale_of(const QuantScheme& scheme, std::span<const float> weight, bool search, float given,
                      ThreadPool& pool);

// `weight` is [rows, columns], finite, columns a multiple of scheme.group_size; `scheme` has another
// ScaleForm than kNumber.
QuantizedMatrix round_float_groups(std::span<const float> weight, std::int64_t rows, std::int64_t columns,
                                   const QuantScheme& scheme, const FloatGroupRounding& how,
                                   ThreadPool& pool);

// The candidates for a group's scale, in the order in which equals win.
class FloatScales {
 public:
  FloatScales(const QuantScheme& scheme, bool search, float global)
      : scheme_(scheme), search_(search), global_(global) {}
  int count() const;
  // Of a group with this largest magnitude; some are equal at the ends of the range.
  float at(float largest, int candidate) const;
  WeightType type() const { return scheme_.weight_type; }
  bool has_levels() const { return scheme_.scale_form() == ScaleForm::kTwoLevel; }

 private:
  const QuantScheme& scheme_;
  bool search_;
  float global_;
};

// The scale of one group, for whoever chooses the codes himself.
float search_float_scale(std::span<const float> group, std::span<const float> importance,
                         const FloatScales& scales);

}  // namespace llmq

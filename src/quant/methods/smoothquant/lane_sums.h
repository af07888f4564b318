// Sums over a row's columns on the host, in the lanes of kernels/common/row_sums.h: the compiler's vectors,
// whatever these are.
#pragma once
#include <algorithm>
#include <cstddef>
#include <span>

#include "kernels/common/row_sums.h"

namespace llmq {

// body(k, lane) for every k below `count`: the lanes of a step need nothing of each other.
template <typename Body>
inline __attribute__((always_inline)) void by_lanes(std::size_t count, const Body& body) {
  constexpr std::size_t kLanes = kSumLanes;
  std::size_t k = 0;
  for (; k + kLanes <= count; k += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) body(k + lane, lane);
  for (std::size_t lane = 0; k < count; ++k, ++lane) body(k, lane);
}

// The largest |x_k / s_k|.
inline float largest(const float* x, const float* inverse, std::size_t count) {
  float most[kSumLanes] = {};
  by_lanes(count, [&](std::size_t k, std::size_t lane) {
    most[lane] = greater_of(most[lane], scaled_magnitude(x[k], inverse[k]));
  });
  return *std::max_element(most, most + kSumLanes);
}

// sum_k weight_k x_k^2.
inline double sum_of_squares(const float* x, std::span<const double> weight) {
  double sums[kSumLanes] = {};
  by_lanes(weight.size(), [&](std::size_t k, std::size_t lane) {
    sums[lane] += weighted_square(static_cast<double>(x[k]), weight[k]);
  });
  return sum_of_lanes(sums);
}

}  // namespace llmq

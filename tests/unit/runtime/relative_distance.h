// How far values lie from those that are wanted, as a share of these.
#pragma once
#include <cmath>
#include <cstddef>
#include <vector>

namespace llmq::testing {

// |a - b| / |b|, of as many values each.
inline double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, whole = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    whole += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / whole);
}

}  // namespace llmq::testing

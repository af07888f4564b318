// Numbers over the largest magnitude of their block, each as a code: the steps of bitsandbytes' plain backend
// (backends/default/ops.py), for 4 and for 8 bits.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace llmq {

// `code_of` takes a number in [-1, 1]. Codes, a byte each, and the scale of each block of `block` numbers. A
// block at the end that is shorter is divided, not multiplied, as the package does.
template <typename CodeOf>
std::vector<float> round_in_blocks(std::span<const float> x, std::size_t block, CodeOf code_of,
                                   std::span<std::uint8_t> codes) {
  constexpr float kLeast = 1e-38f;
  std::vector<float> scales;
  for (std::size_t first = 0; first < x.size(); first += block) {
    const std::size_t end = std::min(first + block, x.size());
    const bool whole = end - first == block;
    float largest = 0;
    for (std::size_t i = first; i < end; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float divisor = std::max(largest, kLeast), inverse = 1 / divisor;
    scales.push_back(whole ? largest : divisor);
    for (std::size_t i = first; i < end; ++i)
      codes[i] = code_of(std::clamp(whole ? x[i] * inverse : x[i] / divisor, -1.f, 1.f));
  }
  return scales;
}

}  // namespace llmq

// Four sub-blocks side by side: number i of sub-block k in lane k of vector i. Nothing is ever added across
// lanes, so that a lane computes what a loop over its sub-block would.
#pragma once
#include <array>
#include <cstddef>

namespace llmq {

inline constexpr int kLanes = 4, kLongestSubBlock = 32;
using Lanes = float __attribute__((vector_size(4 * kLanes)));
using LaneMask = int __attribute__((vector_size(4 * kLanes)));  // what comparing lanes gives: -1 or 0

inline Lanes select(LaneMask mask, Lanes yes, Lanes no) { return mask ? yes : no; }
inline Lanes all_lanes(float value) { return Lanes{} + value; }

// To the nearest integer, ties to even, and into [low, high]; for |scaled| < 2^22.
inline Lanes rounded(Lanes scaled, Lanes low, Lanes high) {
  const Lanes whole = (scaled + 0x1.8p23f) - 0x1.8p23f;
  const Lanes raised = whole > low ? whole : low;
  return raised < high ? raised : high;
}

// Four runs that follow each other in memory.
struct RunLanes {
  std::array<Lanes, kLongestSubBlock> x, weight;
  std::size_t size;

  RunLanes(const float* numbers, const float* weights, int length) : size(static_cast<std::size_t>(length)) {
    for (std::size_t i = 0; i < size; ++i)
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        x[i][lane] = numbers[lane * size + i];
        weight[i][lane] = weights[lane * size + i];
      }
  }
};

}  // namespace llmq

// A row of logits scored tile by tile of kScoreTile: the sums of its tiles, put together from the left. One
// order of sums, whether the logits lie in memory or come out of a product a tile at a time.
//
//   log p(target) = x[target] - M - log sum over tiles t of exp(m_t - M) s_t,   m_t = max of tile t, s_t =
//       sum exp(x - m_t), M = max m_t
#pragma once
#include <cmath>
#include <span>

#include "device/backend.h"
#include "kernels/cpu/cpu_kernels.h"

namespace llmq {

inline constexpr std::int64_t kScoreTile = 512;  // a multiple of every level's panel

struct TileScore {
  double sum = 0;
  float max = 0;
  std::int32_t argmax = 0;  // within the row; lowest index among equals
};

inline TileScore score_tile(const CpuKernels& kernels, const float* logits, std::int64_t count,
                            std::int64_t first) {
  std::int64_t argmax = 0;
  const SoftmaxSum sum = kernels.softmax_sum(logits, count, &argmax);
  return {sum.sum, sum.max, static_cast<std::int32_t>(first + argmax)};
}

inline RowScore join(std::span<const TileScore> tiles, float target) {
  const TileScore* best = &tiles.front();
  for (const TileScore& tile : tiles)
    if (tile.max > best->max) best = &tile;
  double sum = 0;
  for (const TileScore& tile : tiles)
    if (tile.max > -HUGE_VALF || !(tile.max == tile.max))  // a tile of nothing but -inf adds nothing
      sum += tile.sum * std::exp(static_cast<double>(tile.max) - static_cast<double>(best->max));
  return {static_cast<double>(target) - (static_cast<double>(best->max) + std::log(sum)), best->argmax};
}

}  // namespace llmq

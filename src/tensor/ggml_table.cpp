#include "tensor/ggml_table.h"

#include <array>
#include <cmath>

#include "tensor/ggml_search.h"

namespace llmq {

float search_table(const float* x, const float* weight) {
  constexpr std::size_t kNumbers = 32, kReach = 7, kVectors = (2 * kReach + 2) / kLanes;
  float extreme = 0;
  for (std::size_t i = 0; i < kNumbers; ++i)
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  if (std::fabs(extreme) < kNoNumbers) return 0;
  constexpr float kLowest = kUnevenValues.front();
  std::array<Lanes, kVectors> inverse, xq{}, qq{};
  inverse[0][0] = 1 / (-extreme / kLowest);
  for (std::size_t c = 1; c < kVectors * kLanes; ++c)
    inverse[c / kLanes][c % kLanes] =
        (static_cast<float>(c) - static_cast<float>(kReach + 1) + kLowest) / extreme;
  for (std::size_t i = 0; i < kNumbers; ++i)
    for (std::size_t v = 0; v < kVectors; ++v) {
      const Lanes value = table_values(inverse[v] * x[i]), weighted = weight[i] * value;
      xq[v] += weighted * x[i];
      qq[v] += weighted * value;
    }
  float scale = qq[0][0] > 0 ? xq[0][0] / qq[0][0] : 0, best = scale * xq[0][0];
  for (std::size_t c = 1; c < kVectors * kLanes; ++c) {
    const float sum = xq[c / kLanes][c % kLanes], squares = qq[c / kLanes][c % kLanes];
    if (!(squares > 0 && sum * sum > best * squares)) continue;
    scale = sum / squares;
    best = scale * sum;
  }
  return scale;
}

}  // namespace llmq

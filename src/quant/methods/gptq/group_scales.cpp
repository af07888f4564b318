#include "quant/methods/gptq/group_scales.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace llmq {
namespace {

using Lanes = std::array<float, kMostTileRows>;

struct LaneRanges {
  Lanes low{}, high{};
  RowRange of(std::size_t r) const { return {low[r], high[r]}; }
};

LaneRanges find_lane_ranges(const float* w, std::int64_t columns, std::size_t rows) {
  LaneRanges ranges;
  for (std::int64_t k = 0; k < columns; ++k, w += rows)
    for (std::size_t r = 0; r < rows; ++r) {
      RowRange range = ranges.of(r);
      range.see(w[r]);
      ranges.low[r] = range.low;
      ranges.high[r] = range.high;
    }
  return ranges;
}

}  // namespace

void choose_group_scales(const TileGroup& group, const RangeCandidates& candidates) {
  const auto rows = static_cast<std::size_t>(host_tile_rows());
  const LaneRanges ranges = find_lane_ranges(group.weight, group.columns, rows);
  Lanes scale, zero, loss, least;
  least.fill(INFINITY);
  for (int i = 0; i < candidates.count(); ++i) {
    for (std::size_t r = 0; r < rows; ++r) {
      const RowGrid grid = candidates.at(i, ranges.of(r));
      scale[r] = grid.scale;
      zero[r] = grid.zero;
    }
    if (i == 0) {  // where every loss is infinite or not a number
      std::copy_n(scale.begin(), rows, group.scale);
      std::copy_n(zero.begin(), rows, group.zero);
      if (!candidates.searched) return;
    }
    host_tile_scale_loss(loss.data(), group.weight, group.importance, group.columns, scale.data(),
                         zero.data(), candidates.rule.top);
    for (std::size_t r = 0; r < rows; ++r)
      if (loss[r] < least[r]) {
        least[r] = loss[r];
        group.scale[r] = scale[r];
        group.zero[r] = zero[r];
      }
  }
}

void try_group_scales(TileColumns columns, const TileGrid& grid, const ScaleTrials& trials,
                      const GridRule& rule) {
  const auto rows = static_cast<std::size_t>(host_tile_rows());
  const std::size_t count = static_cast<std::size_t>(columns.columns) * rows;
  const float* const carried = columns.carried;
  std::array<RowTrials, kMostTileRows> search;
  for (std::size_t r = 0; r < rows; ++r) search[r] = RowTrials::around({grid.scale[r], grid.zero[r]});
  Lanes loss;
  std::vector<float> moving(count);
  columns.carried = moving.data();
  columns.loss = loss.data();
  for (int i = 0; i < trials.count(rule.symmetric); ++i) {
    for (std::size_t r = 0; r < rows; ++r) {
      const RowGrid tried = search[r].trial(i, trials, rule);
      grid.scale[r] = tried.scale;
      grid.zero[r] = tried.zero;
    }
    std::copy_n(carried, count, moving.begin());
    loss.fill(0);
    host_tile_try(columns);
    for (std::size_t r = 0; r < rows; ++r) search[r].judge({grid.scale[r], grid.zero[r]}, loss[r]);
  }
  for (std::size_t r = 0; r < rows; ++r) {
    grid.scale[r] = search[r].best.scale;
    grid.zero[r] = search[r].best.zero;
    if (grid.loss != nullptr) grid.loss[r] = search[r].least;
  }
}

}  // namespace llmq

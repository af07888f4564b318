#include "quant/group_scales.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "device/host_tiles.h"
#include "quant/rounding.h"
#include "tensor/quantized_matrix.h"

namespace llmq {
namespace {

using Lanes = std::array<float, kMostTileRows>;

constexpr int kShrinks = 20;  // asymmetric: factors 1, 0.975 .. 0.525 of either end or both
constexpr float kShrinkStep = 0.025f;
constexpr int kSymmetricShrinks = 25;  // symmetric: factors 1.05, 1.03 .. 0.57
constexpr float kWidest = 1.05f, kSymmetricStep = 0.02f;

struct Ranges {
  Lanes low{}, high{}, largest{};  // largest: the weight of largest magnitude, the first of equals
};

Ranges find_lane_ranges(const float* w, std::int64_t columns, std::size_t rows) {
  Ranges ranges;
  for (std::int64_t k = 0; k < columns; ++k, w += rows)
    for (std::size_t r = 0; r < rows; ++r) {
      ranges.low[r] = std::min(ranges.low[r], w[r]);
      ranges.high[r] = std::max(ranges.high[r], w[r]);
    }
  for (std::size_t r = 0; r < rows; ++r)
    ranges.largest[r] = -ranges.low[r] > ranges.high[r] ? ranges.low[r] : ranges.high[r];
  return ranges;
}

class Search {
 public:
  Search(const TileGroup& group, const QuantScheme& scheme, bool full_range)
      : group_(group),
        scheme_(scheme),
        full_range_(full_range),
        rows_(static_cast<std::size_t>(host_tile_rows())),
        top_(static_cast<float>(scheme.code_count() - 1)),
        ranges_(find_lane_ranges(group.weight, group.columns, rows_)) {
    least_.fill(INFINITY);
  }

  void start() {
    take_range(1, 1);
    std::copy_n(scale_.begin(), rows_, group_.scale);
    std::copy_n(zero_.begin(), rows_, group_.zero);
  }

  void run() {
    judge();
    if (scheme_.symmetric)
      search_symmetric();
    else
      search_asymmetric();
  }

 private:
  void search_symmetric() {
    for (int i = 0; i < kSymmetricShrinks; ++i) {
      const float f = kWidest - kSymmetricStep * static_cast<float>(i);
      take_range(f, f);
      judge();
      if (!full_range_) continue;
      for (std::size_t r = 0; r < rows_; ++r)
        scale_[r] =
            stored_scale(-f * ranges_.largest[r] / static_cast<float>(scheme_.middle()), scheme_.scale_dtype);
      judge();
    }
  }

  void search_asymmetric() {
    for (int i = 1; i < kShrinks; ++i) {
      const float f = 1.0f - kShrinkStep * static_cast<float>(i);
      take_range(f, f), judge();
      take_range(f, 1), judge();
      take_range(1, f), judge();
    }
  }

  void take_range(float low, float high) {
    for (std::size_t r = 0; r < rows_; ++r) {
      const GroupGrid grid = grid_for({ranges_.low[r] * low, ranges_.high[r] * high}, scheme_);
      scale_[r] = grid.scale;
      zero_[r] = grid.zero;
    }
  }

  void judge() {
    Lanes loss;
    host_tile_scale_loss(loss.data(), group_.weight, group_.importance, group_.columns, scale_.data(),
                         zero_.data(), top_);
    for (std::size_t r = 0; r < rows_; ++r)
      if (loss[r] < least_[r]) {
        least_[r] = loss[r];
        group_.scale[r] = scale_[r];
        group_.zero[r] = zero_[r];
      }
  }

  const TileGroup& group_;
  const QuantScheme& scheme_;
  bool full_range_;
  std::size_t rows_;
  float top_;
  Ranges ranges_;
  Lanes scale_{}, zero_{}, least_{};
};

}  // namespace

void choose_group_scales(const TileGroup& group, const QuantScheme& scheme, const GptqOptions& options) {
  Search search(group, scheme, options.full_range);
  search.start();
  if (options.scale_search != GptqOptions::ScaleSearch::kMinMax) search.run();
}

void try_group_scales(TileColumns columns, const TileGrid& grid, const ScaleTrials& trials,
                      const QuantScheme& scheme) {
  const auto rows = static_cast<std::size_t>(host_tile_rows());
  const std::size_t count = static_cast<std::size_t>(columns.columns) * rows;
  const float* const carried = columns.carried;
  Lanes first_scale, first_zero, best_scale, best_zero, loss, least;
  std::copy_n(grid.scale, rows, first_scale.begin());
  std::copy_n(grid.zero, rows, first_zero.begin());
  best_scale = first_scale;
  best_zero = first_zero;
  least.fill(INFINITY);
  std::vector<float> moving(count);
  columns.carried = moving.data();
  columns.loss = loss.data();
  const auto judge = [&] {
    std::copy_n(carried, count, moving.begin());
    loss.fill(0);
    host_tile_try(columns);
    for (std::size_t r = 0; r < rows; ++r)
      if (loss[r] < least[r]) {
        least[r] = loss[r];
        best_scale[r] = grid.scale[r];
        best_zero[r] = grid.zero[r];
      }
  };
  for (int i = 0; i <= 2 * trials.moves; ++i) {  // 0, 1, -1, 2, -2 ..
    const float factor = 1.0f + trials.step * static_cast<float>(i % 2 == 1 ? (i + 1) / 2 : -(i / 2));
    for (std::size_t r = 0; r < rows; ++r)
      grid.scale[r] = stored_scale(first_scale[r] * factor, scheme.scale_dtype);
    judge();
  }
  if (!scheme.symmetric) {
    std::copy_n(best_scale.begin(), rows, grid.scale);
    for (const float shift : {1.0f, -1.0f}) {
      for (std::size_t r = 0; r < rows; ++r)
        grid.zero[r] = std::clamp(first_zero[r] + shift, 0.0f, columns.top);
      judge();
    }
  }
  std::copy_n(best_scale.begin(), rows, grid.scale);
  std::copy_n(best_zero.begin(), rows, grid.zero);
  if (grid.loss != nullptr) std::copy_n(least.begin(), rows, grid.loss);
}

}  // namespace llmq

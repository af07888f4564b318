#include "quant/group_scales.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "quant/rounding.h"
#include "tensor/quantized_matrix.h"

namespace llmq {
namespace {

using Lanes = std::array<float, kTileRows>;

constexpr int kShrinks = 20;  // asymmetric: factors 1, 0.975 .. 0.525 of either end or both
constexpr float kShrinkStep = 0.025f;
constexpr int kSymmetricShrinks = 25;  // symmetric: factors 1.05, 1.03 .. 0.57
constexpr float kWidest = 1.05f, kSymmetricStep = 0.02f;

struct Ranges {
  Lanes low{}, high{}, largest{};  // largest: the weight of largest magnitude, the first of equals
};

Ranges find_lane_ranges(const float* w, std::int64_t width) {
  Ranges ranges;
  for (std::int64_t k = 0; k < width; ++k)
    for (std::size_t r = 0; r < kTileRows; ++r) {
      const float v = w[k * kTileRows + static_cast<std::int64_t>(r)];
      ranges.low[r] = std::min(ranges.low[r], v);
      ranges.high[r] = std::max(ranges.high[r], v);
      if (std::fabs(v) > std::fabs(ranges.largest[r])) ranges.largest[r] = v;
    }
  return ranges;
}

// The best candidate so far, per row.
class Search {
 public:
  Search(const float* w, const float* importance, std::int64_t width, float top)
      : w_(w), importance_(importance), width_(width), top_(top) {
    least_.fill(INFINITY);
  }

  void judge(const Lanes& scale, const Lanes& zero) {
    Lanes loss{}, inverse;
    for (std::size_t r = 0; r < kTileRows; ++r) inverse[r] = 1.0f / scale[r];
    for (std::int64_t k = 0; k < width_; ++k) {
      const float weight = importance_[k];
      const float* const w = w_ + k * kTileRows;
      for (std::size_t r = 0; r < kTileRows; ++r) {
        float code = nearest_integer(w[r] * inverse[r]) + zero[r];
        code = code > 0.0f ? code : 0.0f;
        code = code < top_ ? code : top_;
        const float d = w[r] - (code - zero[r]) * scale[r];
        loss[r] += weight * d * d;
      }
    }
    for (std::size_t r = 0; r < kTileRows; ++r)
      if (loss[r] < least_[r]) {
        least_[r] = loss[r];
        scale_[r] = scale[r];
        zero_[r] = zero[r];
      }
  }

  void write(float* scale, float* zero) const {
    std::copy(scale_.begin(), scale_.end(), scale);
    std::copy(zero_.begin(), zero_.end(), zero);
  }
  // What is there before anything is judged, and stays where no loss is a number.
  void start(const Lanes& scale, const Lanes& zero) {
    scale_ = scale;
    zero_ = zero;
  }

 private:
  const float* w_;
  const float* importance_;
  std::int64_t width_;
  float top_;
  Lanes scale_{}, zero_{}, least_{};
};

void range_candidate(const Ranges& ranges, float low, float high, const QuantScheme& scheme, Lanes& scale,
                     Lanes& zero) {
  for (std::size_t r = 0; r < kTileRows; ++r) {
    const GroupGrid grid = grid_for({ranges.low[r] * low, ranges.high[r] * high}, scheme);
    scale[r] = grid.scale;
    zero[r] = grid.zero;
  }
}

}  // namespace

void choose_group_scales(const float* w, const float* importance, std::int64_t width,
                         const QuantScheme& scheme, const GptqOptions& options, float* scale, float* zero) {
  const Ranges ranges = find_lane_ranges(w, width);
  const float top = static_cast<float>(scheme.code_count() - 1);
  Search search(w, importance, width, top);
  Lanes s, z;
  range_candidate(ranges, 1, 1, scheme, s, z);
  search.start(s, z);
  if (options.scale_search != GptqOptions::ScaleSearch::kMinMax) {
    search.judge(s, z);
    if (scheme.symmetric) {
      for (int i = 0; i < kSymmetricShrinks; ++i) {
        const float f = kWidest - kSymmetricStep * static_cast<float>(i);
        range_candidate(ranges, f, f, scheme, s, z);
        search.judge(s, z);
        if (!options.full_range) continue;
        for (std::size_t r = 0; r < kTileRows; ++r)
          s[r] =
              stored_scale(-f * ranges.largest[r] / static_cast<float>(scheme.middle()), scheme.scale_dtype);
        search.judge(s, z);
      }
    } else {
      for (int i = 1; i < kShrinks; ++i) {
        const float f = 1.0f - kShrinkStep * static_cast<float>(i);
        for (const auto& [low, high] : {std::pair{f, f}, std::pair{f, 1.0f}, std::pair{1.0f, f}}) {
          range_candidate(ranges, low, high, scheme, s, z);
          search.judge(s, z);
        }
      }
    }
  }
  search.write(scale, zero);
}

}  // namespace llmq

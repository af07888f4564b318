#include "quant/pipeline/scale_histogram.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace llmq {
namespace {

// The quarter of its octave in which a mantissa of 1..2 lies: edges 2^(1/4), 2^(1/2), 2^(3/4).
int quarter(float mantissa) {
  constexpr std::array<float, 3> kEdges = {1.18920712f, 1.41421356f, 1.68179283f};
  return static_cast<int>(std::upper_bound(kEdges.begin(), kEdges.end(), mantissa) - kEdges.begin());
}

}  // namespace

ScaleHistogram scale_histogram(std::span<const float> scales) {
  std::vector<int> bins;
  bins.reserve(scales.size());
  for (const float scale : scales) {
    if (scale == 0 || !std::isfinite(scale)) continue;
    int exponent = 0;
    const float half = std::frexp(std::fabs(scale), &exponent);  // in [0.5, 1)
    bins.push_back((exponent - 1) * ScaleHistogram::kBinsPerOctave + quarter(2 * half));
  }
  if (bins.empty()) return {};
  const auto [least, most] = std::minmax_element(bins.begin(), bins.end());
  const auto octave = [](int bin) {
    return static_cast<int>(std::floor(static_cast<double>(bin) / ScaleHistogram::kBinsPerOctave));
  };
  ScaleHistogram found;
  found.first_octave = octave(*least);
  const int first_bin = found.first_octave * ScaleHistogram::kBinsPerOctave;
  const int end_bin = (octave(*most) + 1) * ScaleHistogram::kBinsPerOctave;
  found.counts.resize(static_cast<std::size_t>(end_bin - first_bin));
  for (const int bin : bins) ++found.counts[static_cast<std::size_t>(bin - first_bin)];
  return found;
}

Json ScaleHistogram::to_json() const {
  Json list = Json::array();
  for (const std::int64_t count : counts) list.push_back(Json(count));
  return Json::object(
      {{"first_octave", Json(first_octave)}, {"bins_per_octave", Json(kBinsPerOctave)}, {"counts", list}});
}

}  // namespace llmq

#include "calibration/row_sample.h"

#include <algorithm>
#include <cmath>

#include "calibration/joined_sums.h"

namespace llmq {

RowSample::RowSample(std::int64_t tokens, std::int64_t channels, std::int64_t wanted) : channels_(channels) {
  wanted = std::min(wanted, tokens);
  constexpr double kGolden = 0.6180339887498949;
  for (std::int64_t i = 0; i < wanted; ++i) {
    const double turn = static_cast<double>(i) * kGolden,
                 at = static_cast<double>(i) + (wanted == tokens ? 0 : turn - std::floor(turn));
    const auto token =
        static_cast<std::int64_t>(at * static_cast<double>(tokens) / static_cast<double>(wanted));
    tokens_.push_back(std::min(token, tokens - 1));
  }
  values_.resize(static_cast<std::size_t>(wanted * channels));
}

void RowSample::add(Backend& backend, const TensorView& x, std::int64_t first) {
  std::vector<std::byte> staged;
  for (auto at = std::lower_bound(tokens_.begin(), tokens_.end(), first);
       at != tokens_.end() && *at < first + x.rows(); ++at) {
    const TensorView row = x.row_slice(*at - first, 1);
    staged.resize(static_cast<std::size_t>(row.bytes()));
    backend.download(staged.data(), row);
    to_float32(TensorView(staged.data(), x.dtype, {1, channels_}),
               std::span(values_).subspan(static_cast<std::size_t>((at - tokens_.begin()) * channels_),
                                          static_cast<std::size_t>(channels_)));
  }
}

void RowSample::join(Ranks& ranks) { join_known(values_, ranks); }

void RowSample::divide_channels(std::span<const float> s) {
  for (std::size_t i = 0; i < values_.size(); ++i) values_[i] /= s[i % s.size()];
}

float RowSample::magnitude_at(double percent) const {
  if (values_.empty()) return 0;
  std::vector<float> magnitudes(values_.size());
  std::transform(values_.begin(), values_.end(), magnitudes.begin(), [](float v) { return std::fabs(v); });
  const auto last = static_cast<double>(magnitudes.size() - 1);
  const auto at = static_cast<std::ptrdiff_t>(std::ceil(last * std::clamp(percent, 0.0, 100.0) / 100));
  std::nth_element(magnitudes.begin(), magnitudes.begin() + at, magnitudes.end());
  return magnitudes[static_cast<std::size_t>(at)];
}

}  // namespace llmq

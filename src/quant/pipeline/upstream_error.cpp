#include "quant/pipeline/upstream_error.h"

#include <algorithm>

#include "quant/methods/gptq/factorization.h"

namespace llmq {
namespace {

constexpr double kDamp = 0.1;
// Rows are solved a band at a time, at most so many bytes of them; but enough that packing the factor for
// each band is little beside it.
constexpr std::uint64_t kSolvedBytes = std::uint64_t{64} << 20;
constexpr std::int64_t kBandElements = kSolvedBytes / sizeof(double), kLeastBand = 256;

}  // namespace

std::int64_t original_stride(std::int64_t samples, std::int64_t length, std::int64_t chunk_tokens) {
  const std::int64_t per_chunk = std::max<std::int64_t>(1, chunk_tokens / length);
  const std::int64_t chunks = chunk_count(samples, length, chunk_tokens);
  const std::int64_t wanted = std::max<std::int64_t>(1, kOriginalTokens / (per_chunk * length));
  return std::max<std::int64_t>(1, chunks / wanted);
}

std::uint64_t UpstreamSizes::solving() const {
  return LowerTriangle::bytes(static_cast<std::int64_t>(channels)) +
         std::min(out * channels * sizeof(double), kSolvedBytes);
}

std::uint64_t UpstreamSizes::solving_on_device(std::uint64_t scratch) const {
  const std::uint64_t row = (channels + static_cast<std::uint64_t>(LowerTriangle::kBlock)) * sizeof(double);
  return sizeof(double) * channels * channels + std::min({out * row, kSolvedBytes, std::max(scratch, row)});
}

OriginalStream make_original_stream(std::span<const ForwardContext> devices,
                                    const CalibrationSet& calibration, std::int64_t chunk_tokens,
                                    const OpenStore& open_store, Ranks& ranks) {
  const auto length = static_cast<std::int64_t>(calibration.samples.front().size());
  const std::int64_t per_chunk = std::max<std::int64_t>(1, chunk_tokens / length);
  const auto samples = static_cast<std::int64_t>(calibration.samples.size());
  const std::int64_t stride = original_stride(samples, length, chunk_tokens);
  CalibrationSet some;
  for (std::int64_t i = 0; i < samples; ++i)
    if (i / per_chunk % stride == 0) some.samples.push_back(calibration.samples[static_cast<std::size_t>(i)]);
  SamplePlace place{false, open_store};
  place.ranks = &ranks;
  place.own =
      own_chunks(chunk_count(samples, length, chunk_tokens), ranks).every(static_cast<std::size_t>(stride));
  ActivationStream stream(devices, some, chunk_tokens, place);
  return {std::move(stream), std::move(some), stride, {}};
}

void apply_upstream_correction(std::span<float> weight, std::span<const double> missing, std::int64_t tokens,
                               const InputStats& stats, double share, Backend& backend) {
  const std::int64_t channels = stats.channels();
  double mean = 0;
  for (std::int64_t k = 0; k < channels; ++k) mean += stats.gram_at(k, k) / static_cast<double>(channels);
  if (!(mean > 0)) return;
  const Factorization factor = factorize(
      channels, kDamp, mean, [&](std::int64_t i, std::int64_t j) { return stats.gram_at(i, j); }, backend,
      FactorUse::kSolving);
  // The factor's columns run from last to first, and so do the rows solved by it.
  const std::int64_t stride = factor.reversed.padded();
  const auto rows = static_cast<std::int64_t>(missing.size()) / channels;
  const double scale = share * static_cast<double>(stats.tokens()) / static_cast<double>(tokens);
  const std::int64_t band = std::min(rows, std::max(kLeastBand, kBandElements / stride));
  std::vector<double> shift(static_cast<std::size_t>(band * stride));
  for (std::int64_t first = 0; first < rows; first += band) {
    const std::int64_t count = std::min(band, rows - first);
    const auto part = std::span(shift).first(static_cast<std::size_t>(count * stride));
    // Of a row of the band: its column k, and its place in what is solved.
    const auto each_row = [&](const auto& work) {
      backend.workers().parallel_for(static_cast<std::size_t>(count), [&](std::size_t n, int) {
        double* const last = part.data() + static_cast<std::int64_t>(n) * stride + channels - 1;
        const std::size_t row = (static_cast<std::size_t>(first) + n) * static_cast<std::size_t>(channels);
        for (std::int64_t k = 0; k < channels; ++k) work(row + static_cast<std::size_t>(k), last[-k]);
      });
    };
    std::fill(part.begin(), part.end(), 0.0);
    each_row([&](std::size_t at, double& place) { place = scale * missing[at]; });
    factor.solve(part, backend.workers());
    each_row([&](std::size_t at, double& place) { weight[at] += static_cast<float>(place); });
  }
}

}  // namespace llmq

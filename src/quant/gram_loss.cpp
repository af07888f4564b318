#include "quant/gram_loss.h"

#include <algorithm>
#include <cstring>

namespace llmq {
namespace {

constexpr std::int64_t kChunkElements = 1 << 19;  // 2 MiB of differences at a time: they stay in the cache
constexpr std::int64_t kRowsPerItem = 16;

}  // namespace

GramLoss::GramLoss(std::span<const float> gram, std::int64_t channels, Backend& backend, Compute compute)
    : backend_(backend),
      channels_(channels),
      chunk_(std::clamp<std::int64_t>(kChunkElements / channels, 16, 8192)) {
  gram_ = backend.prepare(TensorView(gram.data(), DType::kF32, {channels, channels}), compute);
  rows_ = backend.allocate(static_cast<std::size_t>(chunk_ * channels) * sizeof(float));
  if (backend.device().kind != DeviceKind::kHost)
    staging_.resize(static_cast<std::size_t>(chunk_ * channels));
}

void GramLoss::evaluate(std::span<double> loss, const std::function<void(std::int64_t, float*)>& make_row,
                        ThreadPool& pool) {
  float* host = staging_.empty() ? rows_.as<float>() : staging_.data();
  const auto total = static_cast<std::int64_t>(loss.size());
  for (std::int64_t first = 0; first < total; first += chunk_) {
    const std::int64_t count = std::min(chunk_, total - first);
    pool.parallel_for(static_cast<std::size_t>((count + kRowsPerItem - 1) / kRowsPerItem),
                      [&](std::size_t item, int) {
                        const std::int64_t begin = static_cast<std::int64_t>(item) * kRowsPerItem,
                                           end = std::min(begin + kRowsPerItem, count);
                        for (std::int64_t i = begin; i < end; ++i) make_row(first + i, host + i * channels_);
                      });
    const TensorView d = rows_.view(DType::kF32, {count, channels_});
    if (!staging_.empty()) backend_.upload(d, host);
    backend_.quadratic_form(loss.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)), d,
                            *gram_);
  }
}

std::vector<double> row_losses(const QuantizedMatrix& matrix, std::span<const float> weight, GramLoss& gram,
                               ThreadPool& pool, std::span<const float> in_scale) {
  const std::int64_t columns = matrix.in_features;
  std::vector<double> loss(static_cast<std::size_t>(matrix.out_features));
  gram.evaluate(
      loss,
      [&](std::int64_t row, float* d) {
        const float* const original = weight.data() + row * columns;
        dequantize_row(matrix, row, d);
        for (std::int64_t k = 0; k < columns; ++k) d[k] -= original[k];
        for (std::size_t k = 0; k < in_scale.size(); ++k) d[k] *= in_scale[k];
      },
      pool);
  return loss;
}

double output_energy(std::span<const float> weight, std::int64_t rows, std::int64_t channels, GramLoss& gram,
                     ThreadPool& pool) {
  std::vector<double> energy(static_cast<std::size_t>(rows));
  gram.evaluate(
      energy,
      [&](std::int64_t row, float* d) {
        std::memcpy(d, weight.data() + row * channels, static_cast<std::size_t>(channels) * sizeof(float));
      },
      pool);
  return sum_in_order(energy);
}

double sum_in_order(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

}  // namespace llmq

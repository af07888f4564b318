#include "quant/gram_loss.h"

#include <algorithm>
#include <cstring>

#include "base/turns.h"

namespace llmq {
namespace {

constexpr std::int64_t kChunkElements = 1 << 19;  // 2 MiB of differences at a time: they stay in the cache
constexpr std::int64_t kRowsPerItem = 16;

}  // namespace

GramLoss::GramLoss(std::span<const float> gram, std::int64_t channels, Backend& backend, Compute compute,
                   std::span<const std::shared_ptr<Backend>> further_devices)
    : channels_(channels), chunk_(std::clamp<std::int64_t>(kChunkElements / channels, 16, 8192)) {
  devices_.emplace_back().backend = &backend;
  for (const std::shared_ptr<Backend>& further : further_devices)
    if (further->device().kind != DeviceKind::kHost) devices_.emplace_back().backend = further.get();
  for (OnDevice& device : devices_) {
    device.gram = device.backend->prepare(TensorView(gram.data(), DType::kF32, {channels, channels}), compute);
    device.rows = device.backend->allocate(static_cast<std::size_t>(chunk_ * channels) * sizeof(float));
    if (device.backend->device().kind != DeviceKind::kHost) device.staging.resize(static_cast<std::size_t>(chunk_ * channels));
  }
}

void GramLoss::evaluate(std::span<double> loss, const std::function<void(std::int64_t, float*)>& make_row,
                        ThreadPool& pool) {
  const auto total = static_cast<std::int64_t>(loss.size()), count = static_cast<std::int64_t>(devices_.size());
  const std::int64_t items = (total + kRowsPerItem - 1) / kRowsPerItem, share = (items + count - 1) / count * kRowsPerItem;
  const std::int64_t most = std::min(chunk_, share);
  Turns turns;  // nobody waits: rows are judged one by one
  side_by_side(devices_.size(), turns, [&](std::size_t own) {
    for (std::int64_t first = static_cast<std::int64_t>(own) * most; first < total; first += count * most)
      evaluate_on(devices_[own], first,
                  loss.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(std::min(most, total - first))), make_row,
                  own == 0 ? pool : devices_[own].backend->workers());
  });
}

void GramLoss::evaluate_on(OnDevice& device, std::int64_t first, std::span<double> loss,
                           const std::function<void(std::int64_t, float*)>& make_row, ThreadPool& pool) const {
  float* const host = device.staging.empty() ? device.rows.as<float>() : device.staging.data();
  const auto count = static_cast<std::int64_t>(loss.size());
  pool.parallel_for(static_cast<std::size_t>((count + kRowsPerItem - 1) / kRowsPerItem), [&](std::size_t item, int) {
    const std::int64_t begin = static_cast<std::int64_t>(item) * kRowsPerItem, end = std::min(begin + kRowsPerItem, count);
    for (std::int64_t i = begin; i < end; ++i) make_row(first + i, host + i * channels_);
  });
  const TensorView d = device.rows.view(DType::kF32, {count, channels_});
  if (!device.staging.empty()) device.backend->upload(d, host);
  device.backend->quadratic_form(loss, d, *device.gram);
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

#include "quant/methods/gram_loss.h"

#include <algorithm>
#include <cstring>

#include "base/side_by_side.h"
#include "calibration/joined_sums.h"
#include "quant/methods/scaled_rows.h"

namespace llmq {
namespace {

constexpr std::int64_t kRowsPerItem = 16;

}  // namespace

std::int64_t GramLoss::rows_at_once(std::int64_t channels, std::uint64_t device_scratch) {
  const std::int64_t numbers = std::max(kHostBytes, static_cast<std::int64_t>(device_scratch / 4)) /
                               static_cast<std::int64_t>(sizeof(float));
  return std::clamp<std::int64_t>(numbers / channels, 16, numbers / 64);
}

std::uint64_t GramLoss::buffer_bytes(std::uint64_t channels, std::uint64_t device_scratch) {
  const std::int64_t rows =
      rows_at_once(static_cast<std::int64_t>(std::max<std::uint64_t>(channels, 1)), device_scratch);
  return std::max(2 * static_cast<std::uint64_t>(kHostBytes),
                  static_cast<std::uint64_t>(rows) * channels * (device_scratch != 0 ? 4 + 4 + 2 : 4 + 4));
}

GramLoss::GramLoss(std::span<const float> gram, std::int64_t channels, Backend& backend, Compute compute,
                   std::span<const std::shared_ptr<Backend>> further_devices, Ranks& ranks)
    : channels_(channels), chunk_(rows_at_once(channels, backend.scratch_bytes())), ranks_(ranks) {
  devices_.emplace_back().backend = &backend;
  for (const std::shared_ptr<Backend>& further : further_devices)
    if (further->device().kind != DeviceKind::kHost) devices_.emplace_back().backend = further.get();
  for (OnDevice& device : devices_) {
    device.gram =
        device.backend->prepare(TensorView(gram.data(), DType::kF32, {channels, channels}), compute);
    if (device.backend->device().kind != DeviceKind::kHost)
      device.maker = device.backend->extensions().difference_maker;
  }
}

// What is too small goes before more is there.
Buffer& GramLoss::with_room(OnDevice& device, Buffer OnDevice::*held, std::int64_t rows) const {
  Buffer& buffer = device.*held;
  const std::size_t bytes = static_cast<std::size_t>(rows * channels_) * sizeof(float);
  if (buffer.bytes() >= bytes) return buffer;
  buffer = Buffer();
  return buffer = device.backend->allocate(bytes);
}

float* GramLoss::staging(OnDevice& device, std::int64_t rows) const {
  if (device.staged < rows) {
    device.staging.reset();
    device.staging = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(rows * channels_));
    device.staged = rows;
  }
  return device.staging.get();
}

template <class Work>
void GramLoss::each_chunk(std::int64_t total, ThreadPool& pool, const Work& work) {
  const auto count = static_cast<std::int64_t>(devices_.size());
  const Dealt own = own_part(static_cast<std::size_t>(total), ranks_);
  const auto begin = static_cast<std::int64_t>(own.first), end = static_cast<std::int64_t>(own.end);
  const std::int64_t items = (end - begin + kRowsPerItem - 1) / kRowsPerItem,
                     share = (items + count - 1) / count * kRowsPerItem;
  const std::int64_t most = std::min(chunk_, share);
  side_by_side(devices_.size(), [&](std::size_t index, const std::atomic<bool>& failed) {
    for (std::int64_t first = begin + static_cast<std::int64_t>(index) * most; first < end && !failed;
         first += count * most)
      work(devices_[index], first, std::min(most, end - first),
           index == 0 ? pool : devices_[index].backend->workers());
  });
}

void GramLoss::evaluate(std::span<double> loss, const std::function<void(std::int64_t, float*)>& make_row,
                        ThreadPool& pool) {
  each_chunk(static_cast<std::int64_t>(loss.size()), pool,
             [&](OnDevice& device, std::int64_t first, std::int64_t count, ThreadPool& workers) {
               evaluate_on(device, first,
                           loss.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
                           make_row, workers);
             });
  join_parts(loss, loss.size(), 1, ranks_);
}

void GramLoss::evaluate_on(OnDevice& device, std::int64_t first, std::span<double> loss,
                           const std::function<void(std::int64_t, float*)>& make_row,
                           ThreadPool& pool) const {
  const auto count = static_cast<std::int64_t>(loss.size());
  const bool open = device.backend->device().kind == DeviceKind::kHost;
  Buffer& rows = with_room(device, &OnDevice::rows, count);
  float* const host = open ? rows.as<float>() : staging(device, count);
  pool.parallel_for(static_cast<std::size_t>((count + kRowsPerItem - 1) / kRowsPerItem),
                    [&](std::size_t item, int) {
                      const std::int64_t begin = static_cast<std::int64_t>(item) * kRowsPerItem,
                                         end = std::min(begin + kRowsPerItem, count);
                      for (std::int64_t i = begin; i < end; ++i) make_row(first + i, host + i * channels_);
                    });
  if (!open) device.backend->upload(rows.view(DType::kF32, {count, channels_}), host);
  judge(device, loss);
}

void GramLoss::judge(OnDevice& device, std::span<double> loss) const {
  const TensorView d = device.rows.view(DType::kF32, {static_cast<std::int64_t>(loss.size()), channels_});
  device.backend->quadratic_form(loss, d, *device.gram);
}

bool GramLoss::makes_differences() const {
  return std::all_of(devices_.begin(), devices_.end(),
                     [](const OnDevice& device) { return device.maker != nullptr; });
}

bool GramLoss::has_float_groups(std::int64_t rows, const std::function<Row(std::int64_t)>& row_of) {
  for (std::int64_t row = 0; row < rows; ++row)
    if (row_of(row).scheme->scale_form() != ScaleForm::kNumber) return true;
  return false;
}

std::vector<std::vector<double>> GramLoss::scaled_losses(std::int64_t rows,
                                                         const std::function<Row(std::int64_t)>& row_of,
                                                         std::span<const std::vector<float>* const> s,
                                                         ThreadPool& pool) {
  std::vector<std::vector<double>> losses(s.size(), std::vector<double>(static_cast<std::size_t>(rows)));
  std::vector<std::vector<float>> factors;  // s, then 1 / s
  for (const std::vector<float>* scale : s) {
    factors.push_back(*scale);
    for (const float factor : *scale) factors.back().push_back(1.0f / factor);
  }
  if (!makes_differences() || has_float_groups(rows, row_of)) {
    for (std::size_t c = 0; c < s.size(); ++c)
      evaluate(
          losses[c],
          [&](std::int64_t i, float* d) {
            thread_local std::vector<float> scratch;
            scratch.resize(static_cast<std::size_t>(channels_));
            const Row row = row_of(i);
            scaled_difference(row.weight, channels_, row.scheme->group_of(channels_), factors[c].data(),
                              factors[c].data() + channels_, *row.scheme, scratch.data(), d);
          },
          pool);
    return losses;
  }
  each_chunk(rows, pool, [&](OnDevice& device, std::int64_t first, std::int64_t count, ThreadPool& workers) {
    const Buffer &differences = with_room(device, &OnDevice::rows, count),
                 &weight = with_room(device, &OnDevice::weight, count);
    float* const host = staging(device, count);
    workers.parallel_for(static_cast<std::size_t>(count), [&](std::size_t i, int) {
      const auto row = static_cast<std::int64_t>(i);
      std::copy_n(row_of(first + row).weight, channels_, host + row * channels_);
    });
    device.backend->upload(weight.view(DType::kF32, {count, channels_}), host);
    const Buffer both = device.backend->allocate(factors.front().size() * sizeof(float));
    for (std::size_t c = 0; c < s.size(); ++c) {
      device.backend->upload(both.view(DType::kF32, {2, channels_}), factors[c].data());
      make_scaled_differences(
          *device.maker, {count, channels_, weight.as<float>(), both.as<float>(), differences.as<float>()},
          [&](std::int64_t row) { return row_of(first + row).scheme; });
      judge(device,
            std::span(losses[c]).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)));
    }
  });
  for (std::vector<double>& loss : losses) join_parts(std::span(loss), loss.size(), 1, ranks_);
  return losses;
}

std::vector<double> GramLoss::shrunk_losses(std::int64_t rows,
                                            const std::function<RangedRow(std::int64_t)>& row_of,
                                            std::span<const Shrink> shrinks, const QuantScheme& scheme,
                                            ThreadPool& pool) {
  const auto options = static_cast<std::int64_t>(shrinks.size());
  std::vector<double> losses(static_cast<std::size_t>(rows * options));
  if (!makes_differences()) {
    evaluate(
        losses,
        [&](std::int64_t item, float* d) {
          const RangedRow row = row_of(item / options);
          const Shrink shrink = shrinks[static_cast<std::size_t>(item % options)];
          round_difference(row.weight, channels_,
                           grid_for({row.range.low * shrink.low, row.range.high * shrink.high}, scheme), d);
        },
        pool);
    return losses;
  }
  each_chunk(
      rows * options, pool, [&](OnDevice& device, std::int64_t first, std::int64_t count, ThreadPool&) {
        const std::int64_t first_row = first / options,
                           row_count = (first + count - 1) / options + 1 - first_row;
        const Buffer &differences = with_room(device, &OnDevice::rows, count),
                     &weight = with_room(device, &OnDevice::weight, row_count);
        float* const host = staging(device, row_count);
        std::vector<float> few;  // ranges, then shrinks
        for (std::int64_t i = 0; i < row_count; ++i) {
          const RangedRow row = row_of(first_row + i);
          std::copy_n(row.weight, channels_, host + i * channels_);
          few.insert(few.end(), {row.range.low, row.range.high});
        }
        for (const Shrink& shrink : shrinks) few.insert(few.end(), {shrink.low, shrink.high});
        const Buffer ranges = device.backend->allocate(few.size() * sizeof(float));
        device.backend->upload(ranges.view(DType::kF32, {static_cast<std::int64_t>(few.size())}), few.data());
        device.backend->upload(weight.view(DType::kF32, {row_count, channels_}), host);
        RowDifferences made;
        made.items = count;
        made.columns = made.group = channels_;
        made.first_item = first;
        made.options = options;
        made.weight = weight.as<float>();
        made.range = ranges.as<float>();
        made.shrink = ranges.as<float>() + 2 * row_count;
        made.difference = differences.as<float>();
        made.rule = grid_rule(scheme);
        device.maker->make_differences(made);
        judge(device,
              std::span(losses).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)));
      });
  join_parts(std::span(losses), losses.size(), 1, ranks_);
  return losses;
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

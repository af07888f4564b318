#include "device/machine_probe.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <vector>

#include "base/half.h"
#include "base/seconds_since.h"
#include "base/sha256.h"

namespace llmq {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kSide = 2048;  // of the square weights: 8 MiB each in BF16
constexpr std::int64_t kWeightBytes = 96 << 20;
constexpr std::int64_t kRows = 256;  // many: every level's kernels are at their best from 64 on
constexpr double kBudget = 0.25;     // seconds for each figure
constexpr int kLeastRuns = 3;

// The shortest of as many runs as fit the budget, and of three at least.
double best_seconds(const std::function<void()>& work) {
  work();  // first touch of the scratch
  double best = std::numeric_limits<double>::infinity();
  const Clock::time_point start = Clock::now();
  for (int run = 0; run < kLeastRuns || seconds_since(start) < kBudget; ++run) {
    const Clock::time_point from = Clock::now();
    work();
    best = std::min(best, seconds_since(from));
  }
  return best;
}

struct Tensor {
  Buffer storage;
  TensorView view;
};

Tensor tensor(Backend& backend, DType dtype, const Shape& shape) {
  Tensor made;
  made.storage = backend.allocate(static_cast<std::size_t>(shape.elements() * element_bytes(dtype)));
  made.view = made.storage.view(dtype, shape);
  return made;
}

// Values of an ordinary size, all different enough: no kernel looks at them, but subnormals would be slow.
Tensor filled(Backend& backend, DType dtype, const Shape& shape) {
  Tensor made = tensor(backend, dtype, shape);
  const auto count = static_cast<std::size_t>(shape.elements());
  const auto value = [](std::size_t i) { return static_cast<float>(i % 251) * 0.0078125f - 1.0f; };
  if (dtype == DType::kF32) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = value(i);
    backend.upload(made.view, values.data());
  } else {
    std::vector<BFloat16> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = to_bfloat16(value(i));
    backend.upload(made.view, values.data());
  }
  return made;
}

}  // namespace

MachineProbe probe_machine(Backend& backend, Compute compute) {
  const Clock::time_point start = Clock::now();
  MachineProbe probe;
  probe.backend = backend.name();
  probe.on_device = backend.device().kind != DeviceKind::kHost;
  const DType dtype = activation_dtype(compute);
  std::vector<std::unique_ptr<PreparedWeight>> weights;
  {
    std::vector<BFloat16> values(static_cast<std::size_t>(kSide * kSide), to_bfloat16(0.5f));
    const TensorView weight(values.data(), DType::kBF16, {kSide, kSide});
    const std::int64_t each = kSide * kSide * element_bytes(dtype);
    for (std::int64_t held = 0; held < kWeightBytes; held += each)
      weights.push_back(backend.prepare(weight, compute));
  }
  const Tensor rows = filled(backend, dtype, {kRows, kSide}),
               product = tensor(backend, DType::kF32, {kRows, kSide});
  const TensorView row = rows.view.row_slice(0, 1), row_product = product.view.row_slice(0, 1);

  double bytes = 0;
  for (const auto& weight : weights) bytes += static_cast<double>(weight->bytes);
  probe.decode_bytes_per_second = bytes / best_seconds([&] {
                                    for (const auto& weight : weights)
                                      backend.linear(row_product, row, *weight, {});
                                    backend.synchronize();
                                  });
  constexpr double kSquare = static_cast<double>(kSide) * static_cast<double>(kSide);
  probe.linear_flops = 2 * static_cast<double>(kRows) * kSquare / best_seconds([&] {
                         backend.linear(product.view, rows.view, *weights.front(), {});
                         backend.synchronize();
                       });
  weights.clear();

  const Tensor gram = tensor(backend, DType::kF32, {kSide, kSide});
  probe.gram_flops = static_cast<double>(kRows) * static_cast<double>(kSide) *
                     static_cast<double>(kSide + 1) / best_seconds([&] {
                       backend.gram(gram.view, rows.view);
                       backend.synchronize();
                     });

  std::vector<BFloat16> few(std::size_t{64} * 64, to_bfloat16(0.5f));
  const auto small = backend.prepare(TensorView(few.data(), DType::kBF16, {64, 64}), compute);
  const Tensor small_row = filled(backend, dtype, {1, 64}),
               small_product = tensor(backend, DType::kF32, {1, 64});
  constexpr int kCalls = 100;
  probe.call_seconds = best_seconds([&] {
                         for (int call = 0; call < kCalls; ++call)
                           backend.linear(small_product.view, small_row.view, *small, {});
                         backend.synchronize();
                       }) /
                       kCalls;

  const std::vector<std::byte> text(std::size_t{8} << 20);
  probe.hash_bytes_per_second = static_cast<double>(text.size()) / best_seconds([&] { sha256_hex(text); });
  probe.seconds = seconds_since(start);
  return probe;
}

}  // namespace llmq

#include "device/cuda/cuda_calibration.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace llmq {
namespace {

// numbers of a Gram matrix on their way to the host
constexpr std::int64_t kDrainedAtOnce = std::int64_t{1} << 22;

class TotalOnDevice final : public GramTotal {
 public:
  TotalOnDevice(CudaDevice& device, std::int64_t channels)
      : device_(device),
        channels_(channels),
        sums_(device.memory(), static_cast<std::size_t>(channels * (channels + 1) / 2) * sizeof(double)) {
    device.zero(sums_.get(), sums_.bytes());
  }
  void drain(const TensorView& g) override {
    require_on(device_.place(), "drain_gram", {&g});
    const int code = device_.kernels().drain_gram(
        {channels_ * channels_, channels_, g.as<float>(), g.row_stride, sums_.as<double>()},
        device_.stream());
    device_.check_launch(code, "drain_gram", [&] { return g.shape.text(); });
  }
  void read(std::span<double> triangle) const override {
    device_.copy_out(triangle.data(), sums_.get(), triangle.size_bytes());
  }

 private:
  CudaDevice& device_;
  std::int64_t channels_;
  Buffer sums_;
};

}  // namespace

void accumulate_gram(const CudaWork& work, const TensorView& g, const TensorView& x) {
  if (x.dtype == DType::kBF16)
    return work.start("gram", work.kernels().gram_bf16,
                      {g.as<float>(), g.row_stride, x.as<const BFloat16>(), x.row_stride, x.rows(), x.cols()},
                      x);
  const float* const numbers = x.as<const float>();
  work.sum_over_rows("gram",
                     {x.cols(), x.cols(), x.rows(), g.as<float>(), g.row_stride, numbers, x.row_stride,
                      numbers, x.row_stride, true, true},
                     x);
}

void add_gram(CudaWork& work, std::span<double> triangle, const TensorView& g) {
  const std::int64_t k = g.cols(),
                     most = std::max<std::int64_t>(1, kDrainedAtOnce / std::max<std::int64_t>(1, k));
  std::vector<float> numbers;
  for (std::int64_t first = 0; first < k; first += most) {
    const std::int64_t rows = std::min(most, k - first);
    numbers.resize(static_cast<std::size_t>(rows * k));
    work.copy_down(numbers.data(), g.row_slice(first, rows));
    work.pool().parallel_for(static_cast<std::size_t>(rows), [&](std::size_t at, int) {
      const std::int64_t i = first + static_cast<std::int64_t>(at);
      double* const sums = triangle.data() + i * (k - 1) - i * (i - 1) / 2;  // sums[j]: j from i on
      const float* const row = numbers.data() + static_cast<std::int64_t>(at) * k;
      for (std::int64_t j = i; j < k; ++j) sums[j] += static_cast<double>(row[j]);
    });
  }
}

void sum_channels(const CudaWork& work, const TensorView& x, std::span<double> absolute_sum,
                  std::span<float> absolute_max) {
  const Buffer sums = work.copy_of(std::span<const double>(absolute_sum)),
               maxima = work.copy_of(std::span<const float>(absolute_max));
  work.start("channel_stats", work.kernels().channel_stats,
             {x.cols(), x.rows(), rows_of(x), sums.as<double>(), maxima.as<float>()}, x);
  work.device().copy_out(absolute_sum.data(), sums.get(), absolute_sum.size_bytes());
  work.device().copy_out(absolute_max.data(), maxima.get(), absolute_max.size_bytes());
}

std::unique_ptr<GramTotal> CudaGramTotals::gram_total(std::int64_t channels) {
  try {
    return std::make_unique<TotalOnDevice>(device_, channels);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kResource) throw;
    return nullptr;
  }
}

}  // namespace llmq

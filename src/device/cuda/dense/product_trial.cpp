#include "device/cuda/dense/product_trial.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/error.h"
#include "base/seconds_since.h"
#include "device/cuda/cuda_calibration.h"
#include "device/cuda/cuda_products.h"
#include "device/cuda/cuda_weight.h"

namespace llmq {
namespace {

constexpr int kTimedCalls = 2;
constexpr std::int64_t kDifferentRows = 128, kDifferentFeatures = 64;
static_assert(kTrialRows % kDifferentRows == 0);

Buffer buffer_of(const CudaWork& work, DType dtype, std::int64_t rows, std::int64_t columns) {
  return work.scratch(static_cast<std::size_t>(rows * columns * element_bytes(dtype)));
}

// BF16 of both signs from 2^-3 to 2^5, so that another order of a sum has other bits; four of SplitMix64's
// words each.
std::vector<BFloat16> mixed_numbers(std::int64_t count, std::uint64_t state) {
  std::vector<BFloat16> numbers(static_cast<std::size_t>(count));
  std::uint64_t z = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i, z >>= 16) {
    if (i % 4 == 0) {
      z = state += 0x9e3779b97f4a7c15u;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
      z ^= z >> 31;
    }
    const auto word = static_cast<std::uint32_t>(z & 0xffff);
    numbers[i].bits =
        static_cast<std::uint16_t>((word & 0x8000) | ((124 + (word >> 7 & 7)) << 7) | (word & 0x7f));
  }
  return numbers;
}

// `rows` of `to`, of which `different` differ.
void put_mixed(const CudaWork& work, const Buffer& to, std::int64_t rows, std::int64_t columns,
               std::int64_t different, std::uint64_t seed) {
  const std::int64_t width = different * columns;
  const std::vector<BFloat16> numbers = mixed_numbers(width, seed);
  const Buffer one = work.copy_of(std::span(numbers));
  const TensorView all = to.view(DType::kBF16, {rows / different, width});
  work.start("numbers of a trial", work.kernels().convert,
             {all.rows() * width, width, rows_of(all), {one.get(), 0, cuda::Element::kBF16}}, all);
}

// Whether `got` - `want`, whose rows are repeated where it has fewer, is 0 everywhere; got is the difference
// then.
bool alike(const CudaWork& work, const TensorView& got, const TensorView& want) {
  for (std::int64_t first = 0; first < got.rows(); first += want.rows()) {
    const TensorView part = got.row_slice(first, std::min(want.rows(), got.rows() - first));
    work.start("comparison of products", work.kernels().add,
               {part.rows() * part.cols(), part.cols(), rows_of(part), rows_of(want), -1.0f}, part);
  }
  const auto channels = static_cast<std::size_t>(got.cols());
  const Buffer sums = work.scratch(channels * sizeof(double)),
               maxima = work.scratch(channels * sizeof(float));
  work.device().zero(sums.get(), sums.bytes());
  work.device().zero(maxima.get(), maxima.bytes());
  work.start("comparison of products", work.kernels().channel_stats,
             {got.cols(), got.rows(), rows_of(got), sums.as<double>(), maxima.as<float>()}, got);
  const std::vector<double> apart = work.copy_back<double>(sums, channels);
  return std::all_of(apart.begin(), apart.end(), [](double sum) { return sum == 0; });
}

template <class Call>
double seconds_of(CudaWork& work, const Call& call) {
  work.device().synchronize();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kTimedCalls; ++i) call();
  work.device().synchronize();
  return seconds_since(start);
}

}  // namespace

ProductTrial::ProductTrial(CudaWork& work, const DenseShape& full)
    : work_(work),
      shape_(full),
      w_(buffer_of(work, DType::kBF16, full.features, full.columns)),
      x_(buffer_of(work, DType::kBF16, full.rows, full.columns)),
      y_(buffer_of(work, DType::kF32, full.rows, full.features)),
      own_(buffer_of(work, DType::kF32, kDifferentRows, full.features)) {
  put_mixed(work, w_, full.features, full.columns, std::gcd(full.features, kDifferentFeatures), 1);
  put_mixed(work, x_, full.rows, full.columns, kDifferentRows, 2);
  CudaWeight weight(work.device());
  weight.out_features = full.features;
  weight.in_features = weight.group = full.columns;
  weight.compute = Compute::kBFloat16;
  pack_numbers(work.device(), weight, w_);
  multiply(work, own_.view(DType::kF32, {kDifferentRows, full.features}),
           x_.view(DType::kBF16, {kDifferentRows, full.columns}), weight, nullptr);
}

bool ProductTrial::passes(DensePlan& plan, std::int64_t rows) {
  work_.device().zero(y_.get(), y_.bytes());
  plan.multiply(y_.as<float>(), x_.as<BFloat16>(), w_.as<BFloat16>(), rows);
  return alike(work_, y_.view(DType::kF32, {rows, shape_.features}),
               own_.view(DType::kF32, {kDifferentRows, shape_.features}));
}

double ProductTrial::seconds(DensePlan& plan) {
  return seconds_of(
      work_, [&] { plan.multiply(y_.as<float>(), x_.as<BFloat16>(), w_.as<BFloat16>(), shape_.rows); });
}

PanelTrial::PanelTrial(CudaWork& work, const GramPanel& square, std::int64_t most)
    : work_(work),
      channels_(square.channels),
      x_(buffer_of(work, DType::kBF16, square.rows, channels_)),
      panel_(buffer_of(work, DType::kF32, std::min(most, channels_), square.stride)),
      own_(buffer_of(work, DType::kF32, kTrialRows, channels_)) {
  const std::int64_t different = std::min(kTrialRows, channels_);
  const Buffer some = buffer_of(work, DType::kBF16, square.rows, different),
               sums = buffer_of(work, DType::kF32, different, different);
  const TensorView x = some.view(DType::kBF16, {square.rows, different}),
                   g = sums.view(DType::kF32, {different, different});
  put_mixed(work, some, square.rows, different, square.rows, 3);
  for (std::int64_t first = 0; first < channels_; first += different) {
    const auto bytes = [](std::int64_t numbers) {
      return static_cast<std::size_t>(numbers) * sizeof(BFloat16);
    };
    const CudaDevice::Strided copy{x_.as<BFloat16>() + first,
                                   some.get(),
                                   bytes(channels_),
                                   bytes(different),
                                   bytes(std::min(different, channels_ - first)),
                                   static_cast<std::size_t>(square.rows)};
    if (!work.device().copy_across(work.device(), copy))
      fail(ErrorKind::kInternal, "{} does not copy within itself", work.device().name());
  }
  work.device().zero(sums.get(), sums.bytes());
  accumulate_gram(work, g, x);
  const auto upper = work.copy_back<float>(sums, static_cast<std::size_t>(different * different));
  std::vector<float> rows(static_cast<std::size_t>(kTrialRows * channels_));
  for (std::int64_t i = 0; i < different; ++i)
    for (std::int64_t c = 0; c < channels_; ++c) {
      const std::int64_t j = c % different;
      rows[static_cast<std::size_t>(i * channels_ + c)] =
          upper[static_cast<std::size_t>(std::min(i, j) * different + std::max(i, j))];
    }
  work.device().copy_in(own_.get(), rows.data(), rows.size() * sizeof(float));
}

bool PanelTrial::passes(PanelPlan& plan, const GramPanel& panel) {
  work_.device().zero(panel_.get(), panel_.bytes());
  plan.add(panel_.as<float>() + panel.first, x_.as<BFloat16>());
  const auto part = [&](const Buffer& of, std::int64_t rows, std::int64_t stride) {
    TensorView view(of.as<float>() + panel.first, DType::kF32, {rows, channels_ - panel.first},
                    work_.place());
    view.row_stride = stride;
    return view;
  };
  return alike(work_, part(panel_, panel.count, panel.stride), part(own_, kTrialRows, channels_));
}

}  // namespace llmq

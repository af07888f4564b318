// An item is some channels of the convolution, or one head of the delta rule: its rows go one after another.
#include "device/cpu/cpu_recurrence.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace llmq {
namespace {

constexpr std::int64_t kConvChannels = 256;

// The last rows of `before` and x become `before`, channels [first, first + count); rising, so that what is
// read has not been written yet.
void keep_last_rows(const TensorView& before, const TensorView& x, std::int64_t first, std::int64_t count) {
  const std::int64_t kept = before.rows();
  for (std::int64_t j = 0; j < kept; ++j) {
    const std::int64_t t = x.rows() - kept + j;
    const float* const from = t < 0 ? before.row<const float>(kept + t) : x.row<const float>(t);
    std::memmove(before.row<float>(j) + first, from + first, static_cast<std::size_t>(count) * sizeof(float));
  }
}

double softplus_of(double x) { return x > 30 ? x : std::log1p(std::exp(x)); }

// What one worker keeps of a head: decay and share of every row, and room for the kernel.
struct HeadNumbers {
  std::vector<float> decay, share, scratch;

  void fill(const DeltaGates& gates, std::int64_t head, std::int64_t rows, std::int64_t key_dim) {
    decay.resize(static_cast<std::size_t>(rows));
    share.resize(static_cast<std::size_t>(rows));
    scratch.resize(static_cast<std::size_t>(2 * key_dim));
    const double rate = std::exp(static_cast<double>(gates.rate.as<const float>()[head])),
                 shift = gates.shift.as<const float>()[head];
    for (std::int64_t t = 0; t < rows; ++t) {
      const auto i = static_cast<std::size_t>(t);
      const double step = gates.decay.row<const float>(t)[head],
                   taken = gates.share.row<const float>(t)[head];
      decay[i] = static_cast<float>(std::exp(-rate * softplus_of(step + shift)));
      share[i] = static_cast<float>(1 / (1 + std::exp(-taken)));
    }
  }
};

}  // namespace

void convolve(const CpuWork& work, const TensorView& y, const TensorView& x, const TensorView& weight,
              const TensorView& before) {
  const std::int64_t channels = x.cols();
  const bool keeps = weight.rows() > 1;
  each_item(work, ceil_of(channels, kConvChannels), [&](std::int64_t item, int) {
    const std::int64_t first = item * kConvChannels, count = std::min(kConvChannels, channels - first);
    work.kernels->causal_conv({y.as<float>() + first, y.row_stride, x.as<const float>() + first, x.row_stride,
                               weight.as<const float>() + first, weight.row_stride,
                               keeps ? before.as<const float>() + first : nullptr, before.row_stride,
                               weight.rows(), x.rows(), count});
    if (keeps) keep_last_rows(before, x, first, count);
  });
}

void apply_delta_rule(const CpuWork& work, const TensorView& out, const TensorView& q, const TensorView& k,
                      const TensorView& v, const DeltaGates& gates, const TensorView& state,
                      const DeltaHeads& heads) {
  const std::int64_t rows = q.rows(), repeat = heads.value_heads / heads.key_heads;
  each_item(work, heads.value_heads, [&](std::int64_t head, int) {
    thread_local HeadNumbers numbers;
    numbers.fill(gates, head, rows, heads.key_dim);
    const std::int64_t keys = head / repeat * heads.key_dim, values = head * heads.value_dim;
    work.kernels->delta_rule({q.as<const float>() + keys, k.as<const float>() + keys,
                              v.as<const float>() + values, q.row_stride, k.row_stride, v.row_stride,
                              numbers.decay.data(), numbers.share.data(),
                              state.as<float>() + values * heads.key_dim, out.as<float>() + values,
                              out.row_stride, rows, heads.key_dim, heads.value_dim,
                              1.0f / std::sqrt(static_cast<float>(heads.key_dim)), numbers.scratch.data()});
  });
}

}  // namespace llmq

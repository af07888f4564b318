// Operations on one row: conversions, norms, rotation, activations, per-channel statistics.
// Memory-bound; sums of a norm run in V::kLanes lanes over the row and are then added in a fixed order.
#pragma once
#include <type_traits>

#include "kernels/common/exact_addition.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/ops/exponential.h"

namespace llmq {

// body(offset, count) over n elements, V::kLanes at a time; the last count may be smaller.
template <class V, class Body>
LLMQ_INLINE void by_lanes(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) body(i, Index<V::kLanes>{});
  if (i < n) body(i, static_cast<int>(n - i));
}

template <class V, int N>
LLMQ_INLINE typename V::F read(const float* p, Index<N>) {
  return V::load(p);
}
template <class V>
LLMQ_INLINE typename V::F read(const float* p, int n) {
  return V::load_first(p, n);
}
template <class V, int N>
LLMQ_INLINE typename V::F read(const BFloat16* p, Index<N>) {
  return V::load_bf16(p);
}
template <class V>
LLMQ_INLINE typename V::F read(const BFloat16* p, int n) {
  BFloat16 padded[V::kLanes] = {};
  for (int i = 0; i < n; ++i) padded[i] = p[i];
  return V::load_bf16(padded);
}
template <class V, int N>
LLMQ_INLINE void write(float* p, typename V::F v, Index<N>) {
  V::store(p, v);
}
template <class V>
LLMQ_INLINE void write(float* p, typename V::F v, int n) {
  V::store_first(p, v, n);
}
template <class V, int N>
LLMQ_INLINE void write(BFloat16* p, typename V::F v, Index<N>) {
  V::store_bf16(p, v);
}
template <class V>
LLMQ_INLINE void write(BFloat16* p, typename V::F v, int n) {
  BFloat16 padded[V::kLanes];
  V::store_bf16(padded, v);
  for (int i = 0; i < n; ++i) p[i] = padded[i];
}

template <class V, class To, class From>
void convert(To* to, const From* from, int64_t n) {
  by_lanes<V>(n, [&](int64_t i, auto count)
                     LLMQ_LAMBDA_INLINE { write<V>(to + i, read<V>(from + i, count), count); });
}

template <class V>
void half_to_f32(float* to, const Float16* from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = to_float(from[i]);
}

template <class V>
void add(float* into, const float* x, float scale, int64_t n) {
  const auto factor = V::set(scale);
  by_lanes<V>(n, [&](int64_t i, auto count) LLMQ_LAMBDA_INLINE {
    write<V>(into + i, V::add(read<V>(into + i, count), V::mul(read<V>(x + i, count), factor)), count);
  });
}

template <class V, class To>
void rms_norm(void* y, const float* x, const float* gain, float eps, int64_t n) {
  To* const to = static_cast<To*>(y);
  auto squares = V::set(0.0f);
  by_lanes<V>(n, [&](int64_t i, auto count) LLMQ_LAMBDA_INLINE {
    const auto v = read<V>(x + i, count);
    squares = V::fma(v, v, squares);
  });
  const auto mean = V::add(V::div(V::set(V::sum(squares)), V::set(static_cast<float>(n))), V::set(eps));
  const auto root = V::div(V::set(1.0f), V::sqrt(mean));
  by_lanes<V>(n, [&](int64_t i, auto count) LLMQ_LAMBDA_INLINE {
    write<V>(to + i, V::mul(V::mul(read<V>(x + i, count), root), read<V>(gain + i, count)), count);
  });
}

// v where the row has elements, 0 beyond its end.
template <class V, int N>
LLMQ_INLINE typename V::F zero_beyond(typename V::F v, Index<N>) {
  return v;
}
template <class V>
LLMQ_INLINE typename V::F zero_beyond(typename V::F v, int n) {
  float padded[V::kLanes] = {};
  V::store_first(padded, v, n);
  return V::load(padded);
}

template <class V, class To>
void layer_norm(void* y, const float* x, const float* gain, const float* bias, float eps, int64_t n) {
  To* const to = static_cast<To*>(y);
  const auto width = V::set(static_cast<float>(n));
  auto sum = V::set(0.0f), squares = sum;
  by_lanes<V>(n, [&](int64_t i, auto count) LLMQ_LAMBDA_INLINE { sum = V::add(sum, read<V>(x + i, count)); });
  const auto mean = V::div(V::set(V::sum(sum)), width);
  by_lanes<V>(n, [&](int64_t i, auto count) LLMQ_LAMBDA_INLINE {
    const auto d = zero_beyond<V>(V::sub(read<V>(x + i, count), mean), count);
    squares = V::fma(d, d, squares);
  });
  const auto variance = V::add(V::div(V::set(V::sum(squares)), width), V::set(eps));
  const auto root = V::div(V::set(1.0f), V::sqrt(variance));
  by_lanes<V>(n, [&](int64_t i, auto count) LLMQ_LAMBDA_INLINE {
    const auto normed = V::mul(V::sub(read<V>(x + i, count), mean), root);
    const auto shift = bias == nullptr ? V::set(0.0f) : read<V>(bias + i, count);
    write<V>(to + i, V::fma(normed, read<V>(gain + i, count), shift), count);
  });
}

template <class V>
void rope(float* x, const float* cosines, const float* sines, int64_t half) {
  by_lanes<V>(half, [&](int64_t i, auto count) LLMQ_LAMBDA_INLINE {
    const auto c = read<V>(cosines + i, count), s = read<V>(sines + i, count);
    const auto a = read<V>(x + i, count), b = read<V>(x + half + i, count);
    write<V>(x + i, V::sub(V::mul(a, c), V::mul(b, s)), count);
    write<V>(x + half + i, V::add(V::mul(b, c), V::mul(a, s)), count);
  });
}

template <class V>
void rope_neighbours(float* x, const float* cosines, const float* sines, int64_t half) {
  for (int64_t i = 0; i < half; i += V::kLanes) {
    const int count = static_cast<int>(half - i < V::kLanes ? half - i : V::kLanes);
    float* const at = x + 2 * i;
    float even[V::kLanes] = {}, odd[V::kLanes] = {};
    for (int k = 0; k < count; ++k) even[k] = at[2 * k], odd[k] = at[2 * k + 1];
    const auto c = read<V>(cosines + i, count), s = read<V>(sines + i, count);
    const auto a = V::load(even), b = V::load(odd);
    V::store(even, V::sub(V::mul(a, c), V::mul(b, s)));
    V::store(odd, V::add(V::mul(b, c), V::mul(a, s)));
    for (int k = 0; k < count; ++k) at[2 * k] = even[k], at[2 * k + 1] = odd[k];
  }
}

// x / (1 + exp(-x))
struct Silu {
  template <class V>
  static LLMQ_INLINE typename V::F apply(typename V::F x) {
    return V::div(x, V::add(V::set(1.0f), exp_f32<V>(V::sub(V::set(0.0f), x))));
  }
};

// 0.5 x (1 + tanh u) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3)
struct GeluTanh {
  template <class V>
  static LLMQ_INLINE typename V::F apply(typename V::F x) {
    const auto cubed = V::mul(V::mul(x, x), x);
    const auto u = V::fma(cubed, V::set(0.044715f), x);
    return V::div(x, V::add(V::set(1.0f), exp_f32<V>(V::mul(V::set(-1.5957691216057308f), u))));
  }
};

// x Phi(x) = max(x, 0) - |x| Q(|x|) with the tail Q(z) = 1 - Phi(z) = erfc(z / sqrt(2)) / 2: half of
// Hastings' t (a1 + t (a2 + ...)) exp(-z^2 / 2), t = 1 / (1 + 0.3275911 z / sqrt(2)), which is off by 1.5e-7
// / 2 at most (Abramowitz and Stegun, 7.1.26).
struct Gelu {
  template <class V>
  static LLMQ_INLINE typename V::F apply(typename V::F x) {
    const auto zero = V::set(0.0f), one = V::set(1.0f);
    const auto z = V::max(V::sub(zero, x), x);
    const auto t = V::div(one, V::fma(z, V::set(0.23164189f), one));
    auto p = V::set(0.5f * 1.061405429f);
    p = V::fma(p, t, V::set(0.5f * -1.453152027f));
    p = V::fma(p, t, V::set(0.5f * 1.421413741f));
    p = V::fma(p, t, V::set(0.5f * -0.284496736f));
    p = V::fma(p, t, V::set(0.5f * 0.254829592f));
    const auto density = exp_f32<V>(V::mul(V::mul(z, V::set(-0.5f)), z));
    return V::sub(V::max(zero, x), V::mul(z, V::mul(V::mul(p, t), density)));
  }
};

// The second operand is kept where one is NaN.
struct Relu {
  template <class V>
  static LLMQ_INLINE typename V::F apply(typename V::F x) {
    return V::max(V::set(0.0f), x);
  }
};

// 1 / (1 + exp(-x))
struct Sigmoid {
  template <class V>
  static LLMQ_INLINE typename V::F apply(typename V::F x) {
    return V::div(V::set(1.0f), V::add(V::set(1.0f), exp_f32<V>(V::sub(V::set(0.0f), x))));
  }
};

// g / (1 + exp(-1.702 g)), g = min(x, 7). Of min() and max() the second operand is kept where one is NaN.
struct ClampedSwiglu {
  template <class V>
  static LLMQ_INLINE typename V::F apply(typename V::F x) {
    const auto gate = V::min(V::set(kSwigluLimit), x);
    return V::div(gate, V::add(V::set(1.0f), exp_f32<V>(V::mul(V::set(-kSwigluSlope), gate))));
  }
  template <class V>
  static LLMQ_INLINE typename V::F factor(typename V::F up) {
    return V::add(V::min(V::set(kSwigluLimit), V::max(V::set(-kSwigluLimit), up)), V::set(1.0f));
  }
};

// What a gate multiplies.
template <class V, class Act>
LLMQ_INLINE typename V::F factor_of(typename V::F up) {
  if constexpr (std::is_same_v<Act, ClampedSwiglu>)
    return Act::template factor<V>(up);
  else
    return up;
}

template <class V, class Act, class To>
void activate(void* y, const float* x, int64_t n) {
  To* const to = static_cast<To*>(y);
  by_lanes<V>(n, [&](int64_t i, auto count) LLMQ_LAMBDA_INLINE {
    write<V>(to + i, Act::template apply<V>(read<V>(x + i, count)), count);
  });
}

template <class V, class Act, class To>
void gated(void* y, const float* gate, const float* up, int64_t n) {
  To* const to = static_cast<To*>(y);
  by_lanes<V>(n, [&](int64_t i, auto count) LLMQ_LAMBDA_INLINE {
    const auto act = Act::template apply<V>(read<V>(gate + i, count));
    write<V>(to + i, V::mul(act, factor_of<V, Act>(read<V>(up + i, count))), count);
  });
}

template <class V>
void softcap(float* x, float cap, int64_t n) {
  const auto most = V::set(cap), part = V::set(1.0f / cap);
  by_lanes<V>(n, [&](int64_t i, auto count) LLMQ_LAMBDA_INLINE {
    write<V>(x + i, V::mul(most, tanh_f32<V>(V::mul(read<V>(x + i, count), part))), count);
  });
}

template <class V>
void exponential(float* y, const float* x, int64_t n) {
  by_lanes<V>(n, [&](int64_t i, auto count)
                     LLMQ_LAMBDA_INLINE { write<V>(y + i, exp_f32<V>(read<V>(x + i, count)), count); });
}

template <class V>
void exponential2(float* y, const float* x, int64_t n) {
  by_lanes<V>(n, [&](int64_t i, auto count)
                     LLMQ_LAMBDA_INLINE { write<V>(y + i, exp2_f32<V>(read<V>(x + i, count)), count); });
}

LLMQ_INLINE float as_float(float v) { return v; }
LLMQ_INLINE float as_float(BFloat16 v) { return to_float(v); }

// N channels from k on, their sums in registers; each channel's sum runs t by t, the same at every level.
template <int N, class From>
LLMQ_INLINE void channel_strip(double* sum, float* max, const From* at, int64_t row, int64_t rows) {
  double sums[N];
  float most[N];
  for (int i = 0; i < N; ++i) sums[i] = sum[i], most[i] = max[i];
  for (int64_t t = 0; t < rows; ++t, at += row)
    for (int i = 0; i < N; ++i) {
      const float magnitude = __builtin_fabsf(as_float(at[i]));
      sums[i] += static_cast<double>(magnitude);
      most[i] = magnitude > most[i] ? magnitude : most[i];
    }
  for (int i = 0; i < N; ++i) sum[i] = sums[i], max[i] = most[i];
}

template <class V, class From>
void channel_stats(double* sum, float* max, const void* x, int64_t row, int64_t rows, int64_t n) {
  constexpr int kStrip = 4 * V::kLanes;
  const From* const at = static_cast<const From*>(x);
  int64_t k = 0;
  for (; k + kStrip <= n; k += kStrip) channel_strip<kStrip>(sum + k, max + k, at + k, row, rows);
  for (; k < n; ++k) channel_strip<1>(sum + k, max + k, at + k, row, rows);
}

template <class V>
bool add_exactly(double* totals, double* errors, const float* values, int64_t n) {
  return add_run_exactly(totals, errors, values, n);
}

}  // namespace llmq

// What rows of a sequence leave for those behind them in a state of fixed size: a short causal convolution of
// every channel, and the gated delta rule of one head.
//
// Rows go one after another, so that a row's bits do not depend on where its sequence is cut. Cost of a row:
// `taps` products a channel; the state is read and written twice, 4 operations an element.
#pragma once
#include "kernels/cpu/ops/rows.h"

namespace llmq {

// Added to the sum of squares of a query or key before its root.
inline constexpr float kUnitEps = 1e-6f;

// y[t][c] = silu(sum_j weight[j][c] x[t - taps + 1 + j][c]), one chain of fused products from the oldest row
// on.
template <class V>
void causal_conv(const ConvRows& a) {
  const auto row_of = [&](int64_t t) LLMQ_LAMBDA_INLINE {
    return t < 0 ? a.before + (a.taps - 1 + t) * a.before_row : a.x + t * a.x_row;
  };
  for (int64_t t = 0; t < a.rows; ++t)
    by_lanes<V>(a.channels, [&](int64_t c, auto count) LLMQ_LAMBDA_INLINE {
      auto sum = V::set(0.0f);
      for (int64_t j = 0; j < a.taps; ++j)
        sum = V::fma(read<V>(row_of(t - a.taps + 1 + j) + c, count),
                     read<V>(a.weight + j * a.weight_row + c, count), sum);
      write<V>(a.y + t * a.y_row + c, Silu::apply<V>(sum), count);
    });
}

// to = x / sqrt(sum x^2 + kUnitEps) * scale
template <class V>
LLMQ_INLINE void make_unit(float* to, const float* x, float scale, int64_t n) {
  auto squares = V::set(0.0f);
  by_lanes<V>(n, [&](int64_t i, auto count) LLMQ_LAMBDA_INLINE {
    const auto v = read<V>(x + i, count);
    squares = V::fma(v, v, squares);
  });
  const auto root = V::sqrt(V::add(V::set(V::sum(squares)), V::set(kUnitEps)));
  const auto factor = V::div(V::set(scale), root);
  by_lanes<V>(n, [&](int64_t i, auto count)
                     LLMQ_LAMBDA_INLINE { write<V>(to + i, V::mul(read<V>(x + i, count), factor), count); });
}

// One row in N vectors of columns of the state, each `count` columns wide:
//   S = decay S;  d = share (v - S^T k);  S += k d^T;  out = S^T q
template <class V, int N, class Count>
LLMQ_INLINE void delta_columns(const DeltaHead& a, int64_t row, int64_t column, Count count) {
  const float *const k = a.scratch, *const q = a.scratch + a.key_dim;
  const auto decay = V::set(a.decay[row]), share = V::set(a.share[row]);
  typename V::F known[N], given[N];
  for (int i = 0; i < N; ++i) known[i] = given[i] = V::set(0.0f);
  for (int64_t c = 0; c < a.key_dim; ++c) {
    float* const state = a.state + c * a.value_dim + column;
    const auto key = V::set(k[c]);
    for (int i = 0; i < N; ++i) {
      const auto kept = V::mul(read<V>(state + i * V::kLanes, count), decay);
      write<V>(state + i * V::kLanes, kept, count);
      known[i] = V::fma(kept, key, known[i]);
    }
  }
  for (int i = 0; i < N; ++i)
    known[i] = V::mul(V::sub(read<V>(a.v + row * a.v_row + column + i * V::kLanes, count), known[i]), share);
  for (int64_t c = 0; c < a.key_dim; ++c) {
    float* const state = a.state + c * a.value_dim + column;
    const auto key = V::set(k[c]), query = V::set(q[c]);
    for (int i = 0; i < N; ++i) {
      const auto next = V::fma(key, known[i], read<V>(state + i * V::kLanes, count));
      write<V>(state + i * V::kLanes, next, count);
      given[i] = V::fma(next, query, given[i]);
    }
  }
  for (int i = 0; i < N; ++i) write<V>(a.out + row * a.out_row + column + i * V::kLanes, given[i], count);
}

template <class V>
void delta_rule(const DeltaHead& a) {
  constexpr int kVectors = 4;
  for (int64_t row = 0; row < a.rows; ++row) {
    make_unit<V>(a.scratch, a.k + row * a.k_row, 1.0f, a.key_dim);
    make_unit<V>(a.scratch + a.key_dim, a.q + row * a.q_row, a.scale, a.key_dim);
    int64_t column = 0;
    for (; column + kVectors * V::kLanes <= a.value_dim; column += kVectors * V::kLanes)
      delta_columns<V, kVectors>(a, row, column, Index<V::kLanes>{});
    by_lanes<V>(a.value_dim - column, [&](int64_t i, auto count) LLMQ_LAMBDA_INLINE {
      delta_columns<V, 1>(a, row, column + i, count);
    });
  }
}

}  // namespace llmq

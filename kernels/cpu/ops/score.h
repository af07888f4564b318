// Sums over one row of logits in FP64: sum exp(x - max), Kullback-Leibler's weighted differences, and the
// last step of a quadratic form.
//
// Two accumulators of V::kDoubles lanes, added lane by lane at the end: an order fixed per level. About one
// FP64 exponential per logit.
#pragma once
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/ops/rows.h"

namespace llmq {

template <class V>
LLMQ_INLINE float row_max(const float* x, int64_t n) {
  auto max = V::set(x[0]);
  int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) max = V::max(max, V::load(x + i));
  float greatest = V::greatest(max);
  for (; i < n; ++i) greatest = x[i] > greatest ? x[i] : greatest;
  return greatest;
}

// body(offset, accumulator index, read) over whole vectors of doubles, then the padded rest.
template <class V>
struct PaddedRow {
  float values[V::kDoubles];
  LLMQ_INLINE PaddedRow(const float* x, int64_t n) {
    for (int i = 0; i < V::kDoubles; ++i) values[i] = i < n ? x[i] : -__builtin_inff();
  }
};

template <class V>
SoftmaxSum softmax_sum(const float* x, int64_t n, int64_t* argmax) {
  const float max = row_max<V>(x, n);
  const auto shift = V::setd(static_cast<double>(max));
  auto even = V::setd(0.0), odd = V::setd(0.0);
  int64_t i = 0;
  for (; i + 2 * V::kDoubles <= n; i += 2 * V::kDoubles) {
    even = V::addd(even, exp_f64<V>(V::subd(V::widen(x + i), shift)));
    odd = V::addd(odd, exp_f64<V>(V::subd(V::widen(x + i + V::kDoubles), shift)));
  }
  for (; i < n; i += V::kDoubles) {
    const PaddedRow<V> rest(x + i, n - i);
    even = V::addd(even, exp_f64<V>(V::subd(V::widen(rest.values), shift)));
  }
  if (argmax != nullptr) {
    int64_t at = 0;
    while (at + V::kLanes <= n && !V::any_equal(V::load(x + at), V::set(max))) at += V::kLanes;
    while (at < n - 1 && x[at] != max) ++at;
    *argmax = at < n && x[at] == max ? at : 0;
  }
  return {max, V::sumd(V::addd(even, odd))};
}

template <class V>
DivergenceSum divergence(const float* p, const float* q, int64_t n) {
  DivergenceSum result{{row_max<V>(p, n), 0}, {row_max<V>(q, n), 0}, 0};
  const auto p_shift = V::setd(static_cast<double>(result.p.max)),
             q_shift = V::setd(static_cast<double>(result.q.max));
  auto p_sum = V::setd(0.0), q_sum = V::setd(0.0), weighted = V::setd(0.0);
  const auto step = [&](const float* p_at, const float* q_at) LLMQ_LAMBDA_INLINE {
    const auto p_value = V::widen(p_at), q_value = V::widen(q_at);
    const auto share = exp_f64<V>(V::subd(p_value, p_shift));
    p_sum = V::addd(p_sum, share);
    q_sum = V::addd(q_sum, exp_f64<V>(V::subd(q_value, q_shift)));
    // A share of 0 weighs nothing, be the difference infinite or undefined.
    weighted = V::fma_where_positive(share, V::subd(p_value, q_value), weighted);
  };
  int64_t i = 0;
  for (; i + V::kDoubles <= n; i += V::kDoubles) step(p + i, q + i);
  if (i < n) {
    const PaddedRow<V> p_rest(p + i, n - i), q_rest(q + i, n - i);
    step(p_rest.values, q_rest.values);
  }
  result.p.sum = V::sumd(p_sum);
  result.q.sum = V::sumd(q_sum);
  result.weighted = V::sumd(weighted);
  return result;
}

template <class V>
double half_form(const float* d, const float* e, const float* g, int64_t n) {
  auto sum = V::setd(0.0);
  const auto step = [&](const float* d_at, const float* e_at, const float* g_at) LLMQ_LAMBDA_INLINE {
    sum = V::fmad(V::widen(d_at), V::fmad(V::setd(2.0), V::widen(e_at), V::widen(g_at)), sum);
  };
  int64_t i = 0;
  for (; i + V::kDoubles <= n; i += V::kDoubles) step(d + i, e + i, g + i);
  double rest = 0;
  for (; i < n; ++i)
    rest += static_cast<double>(d[i]) * (2.0 * static_cast<double>(e[i]) + static_cast<double>(g[i]));
  return V::sumd(sum) + rest;
}

}  // namespace llmq

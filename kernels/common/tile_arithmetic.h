// What rounding with error feedback does to one column of a row (kernels/common/row_tile.h), written once: V
// is a vector of rows on the host (kernels/cpu/ops/tile.h) and a single row on a device
// (kernels/cuda/tile_rounding.h). One IEEE operation or fused multiply-add each, so the bits are the same.
// V::min and V::max are of two operands the second where either is NaN.
#pragma once
#include "kernels/common/anywhere.h"

namespace llmq {

// One row as a V.
struct OneRow {
  using F = float;
  static LLMQ_ANYWHERE float set(float x) { return x; }
  static LLMQ_ANYWHERE float add(float a, float b) { return a + b; }
  static LLMQ_ANYWHERE float sub(float a, float b) { return a - b; }
  static LLMQ_ANYWHERE float mul(float a, float b) { return a * b; }
  static LLMQ_ANYWHERE float div(float a, float b) { return a / b; }
  static LLMQ_ANYWHERE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
  static LLMQ_ANYWHERE float min(float a, float b) { return a < b ? a : b; }
  static LLMQ_ANYWHERE float max(float a, float b) { return a > b ? a : b; }
};

// Nearest integer, ties to even, for |x| < 2^22: adding 1.5 * 2^23 leaves no fraction bits.
template <class V>
LLMQ_ANYWHERE typename V::F nearest(typename V::F x) {
  const auto magic = V::set(12582912.0f);
  return V::sub(V::add(x, magic), magic);
}

// Steps, code - zero, of which the code lies in 0 .. top.
template <class V>
LLMQ_ANYWHERE typename V::F kept_steps(typename V::F steps, typename V::F zero, float top) {
  return V::min(V::sub(V::set(top), zero), V::max(V::sub(V::set(0.0f), zero), steps));
}

// Of the code nearest to w / scale.
template <class V>
LLMQ_ANYWHERE typename V::F code_steps(typename V::F w, typename V::F scale, typename V::F zero, float top) {
  const auto code = V::add(nearest<V>(V::div(w, scale)), zero);
  // The constant first: of two operands min and max keep the second where either is NaN.
  return V::sub(V::min(V::set(top), V::max(V::set(0.0f), code)), zero);
}

template <class V>
struct TileColumn {
  typename V::F weight, carried, scale, zero;
  float top;

  LLMQ_ANYWHERE typename V::F steps_of(typename V::F v) const {
    return kept_steps<V>(nearest<V>(V::div(v, scale)), zero, top);
  }
};

template <class V>
struct ColumnResult {
  typename V::F steps, difference, error;  // error: what the columns after it hear
};

template <class V>
LLMQ_ANYWHERE ColumnResult<V> round_column(const TileColumn<V>& c) {
  const auto steps = c.steps_of(V::add(c.weight, c.carried)), e = V::sub(c.weight, V::mul(steps, c.scale));
  return {steps, e, e};
}

template <class V>
LLMQ_ANYWHERE ColumnResult<V> descend_column(const TileColumn<V>& c, typename V::F old_steps, float inverse) {
  const auto value = V::mul(old_steps, c.scale);
  const auto steps = c.steps_of(V::fma(c.carried, V::set(inverse), value)), fresh = V::mul(steps, c.scale);
  return {steps, V::sub(c.weight, fresh), V::sub(value, fresh)};
}

// The error; `loss` grows.
template <class V>
LLMQ_ANYWHERE typename V::F try_column(const TileColumn<V>& c, float cost, typename V::F& loss) {
  const auto v = V::add(c.weight, c.carried), value = V::mul(c.steps_of(v), c.scale), left = V::sub(v, value);
  loss = V::fma(V::mul(left, V::set(cost)), left, loss);
  return V::sub(c.weight, value);
}

// sum + importance (w - value of its code)^2, the code by a product with inverse = 1 / scale.
template <class V>
LLMQ_ANYWHERE typename V::F plain_loss(typename V::F sum, typename V::F w, float importance,
                                       typename V::F scale, typename V::F inverse, typename V::F zero,
                                       float top) {
  const auto steps = kept_steps<V>(nearest<V>(V::mul(w, inverse)), zero, top),
             e = V::sub(w, V::mul(steps, scale));
  return V::fma(V::mul(e, V::set(importance)), e, sum);
}

}  // namespace llmq

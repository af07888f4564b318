// Rounding with error feedback on a tile of rows (kernels/common/row_tile.h): lanes are rows, every operation is
// one IEEE operation or fused multiply-add per lane, in the order of the columns.
//
// The chain inside a block goes eight columns at a time; what they leave to the columns after them is a product.
#pragma once
#include "kernels/common/row_tile.h"
#include "kernels/cpu/ops/gemm.h"
#include "kernels/cpu/ops/rounding.h"

namespace llmq {

template <class V>
struct TileRow {
  static constexpr int kVectors = V::kPanelVectors;
  static constexpr int64_t kRows = static_cast<int64_t>(V::kPanelVectors) * V::kLanes;
};

// body(v, offset) for each vector of a tile's row.
template <class V, class Body>
LLMQ_INLINE void each_vector(const Body& body) {
  unroll<TileRow<V>::kVectors>([&](auto v)
                                   LLMQ_LAMBDA_INLINE { body(decltype(v)::value * int64_t{V::kLanes}); });
}

// The steps of code(v): round(v / scale), kept where code = steps + zero lies in 0 .. top.
template <class V>
LLMQ_INLINE typename V::F tile_steps(typename V::F v, typename V::F scale, typename V::F zero, float top) {
  const auto low = V::sub(V::set(0.0f), zero), high = V::sub(V::set(top), zero);
  return V::min(high, V::max(low, nearest<V>(V::div(v, scale))));
}

template <class V>
struct RoundStep {
  // Writes the error of column k where the columns after it read it.
  static LLMQ_INLINE void apply(const TileColumns& t, int64_t k, int64_t offset, float* error) {
    const int64_t at = k * TileRow<V>::kRows + offset, g = t.group[k] * TileRow<V>::kRows + offset;
    const auto w = V::load(t.weight + at), scale = V::load(t.scale + g);
    const auto steps = tile_steps<V>(V::add(w, V::load(t.carried + at)), scale, V::load(t.zero + g), t.top);
    const auto e = V::sub(w, V::mul(steps, scale));
    V::store(t.steps + at, steps);
    V::store(t.difference + at, e);
    V::store(error + offset, e);
  }
};

template <class V>
struct DescendStep {
  static LLMQ_INLINE void apply(const TileColumns& t, int64_t k, int64_t offset, float* error) {
    const int64_t at = k * TileRow<V>::kRows + offset, g = t.group[k] * TileRow<V>::kRows + offset;
    const auto scale = V::load(t.scale + g), value = V::mul(V::load(t.steps + at), scale);
    const auto best = V::fma(V::load(t.carried + at), V::set(t.inverse[k]), value);
    const auto steps = tile_steps<V>(best, scale, V::load(t.zero + g), t.top), fresh = V::mul(steps, scale);
    V::store(t.steps + at, steps);
    V::store(t.difference + at, V::sub(V::load(t.weight + at), fresh));
    V::store(error + offset, V::sub(value, fresh));
  }
};

template <class V>
struct TryStep {
  static LLMQ_INLINE void apply(const TileColumns& t, int64_t k, int64_t offset, float* error) {
    const int64_t at = k * TileRow<V>::kRows + offset, g = t.group[k] * TileRow<V>::kRows + offset;
    const auto w = V::load(t.weight + at), scale = V::load(t.scale + g);
    const auto v = V::add(w, V::load(t.carried + at));
    const auto value = V::mul(tile_steps<V>(v, scale, V::load(t.zero + g), t.top), scale);
    const auto left = V::sub(v, value);
    V::store(t.loss + offset, V::fma(V::mul(left, V::set(t.cost[k])), left, V::load(t.loss + offset)));
    V::store(error + offset, V::sub(w, value));
  }
};

template <class V>
struct SolveStep {
  static LLMQ_INLINE void apply(const TileColumns& t, int64_t k, int64_t offset, float* error) {
    const int64_t at = k * TileRow<V>::kRows + offset;
    const auto e = V::sub(V::set(0.0f), V::load(t.carried + at));
    V::store(t.difference + at, e);
    V::store(error + offset, e);
  }
};

template <class V, class Step>
void tile_chain(const TileColumns& t) {
  constexpr int64_t kRows = TileRow<V>::kRows, kAhead = 8;
  float errors[kAhead * kRows];
  for (int64_t first = 0; first < t.columns; first += kAhead) {
    const int64_t end = first + kAhead < t.columns ? first + kAhead : t.columns;
    for (int64_t k = first; k < end; ++k) {
      float* const error = errors + (k - first) * kRows;
      each_vector<V>([&](int64_t offset) LLMQ_LAMBDA_INLINE { Step::apply(t, k, offset, error); });
      for (int64_t j = k + 1; j < end; ++j) {
        const auto factor = V::set(t.factors[k * t.factor_row + j]);
        float* const carried = t.carried + j * kRows;
        each_vector<V>([&](int64_t offset) LLMQ_LAMBDA_INLINE {
          V::store(carried + offset, V::fma(factor, V::load(error + offset), V::load(carried + offset)));
        });
      }
    }
    if (end == t.columns) return;
    GemmPanel rest;
    rest.a = t.factors + first * t.factor_row + end;
    rest.a_row = t.factor_row * static_cast<int64_t>(sizeof(float));
    rest.transposed = true;
    rest.b = errors;
    rest.c = t.carried + end * kRows;
    rest.c_row = kRows;
    rest.rows = t.columns - end;
    rest.depth = end - first;
    rest.columns = kRows;
    rest.accumulate = true;
    gemm_one_panel<V, ProductF32<V>>(rest);
  }
}

// loss[r] = sum_k importance[k] (w - value of its code)^2; the code by a product with 1 / scale.
template <class V>
void tile_scale_loss(float* loss, const float* w, const float* importance, int64_t columns,
                     const float* scale, const float* zero, float top) {
  constexpr int64_t kRows = TileRow<V>::kRows;
  each_vector<V>([&](int64_t offset) LLMQ_LAMBDA_INLINE {
    const auto s = V::load(scale + offset), z = V::load(zero + offset);
    const auto inverse = V::div(V::set(1.0f), s), low = V::sub(V::set(0.0f), z),
               high = V::sub(V::set(top), z);
    auto sum = V::set(0.0f);
    for (int64_t k = 0; k < columns; ++k) {
      const auto v = V::load(w + k * kRows + offset);
      const auto steps = V::min(high, V::max(low, nearest<V>(V::mul(v, inverse))));
      const auto e = V::sub(v, V::mul(steps, s));
      sum = V::fma(V::mul(e, V::set(importance[k])), e, sum);
    }
    V::store(loss + offset, sum);
  });
}

// sum[r] = sum_k a[k][r] b[k][r]
template <class V>
void tile_dot(float* sum, const float* a, const float* b, int64_t columns) {
  constexpr int64_t kRows = TileRow<V>::kRows;
  each_vector<V>([&](int64_t offset) LLMQ_LAMBDA_INLINE {
    auto total = V::set(0.0f);
    for (int64_t k = 0; k < columns; ++k)
      total = V::fma(V::load(a + k * kRows + offset), V::load(b + k * kRows + offset), total);
    V::store(sum + offset, total);
  });
}

// to[k][r] = start[k][r] - factor[r] x[k][r], the product rounded; `to` may be `start`
template <class V>
void tile_subtract(float* to, const float* start, const float* factor, const float* x, int64_t columns) {
  constexpr int64_t kRows = TileRow<V>::kRows;
  for (int64_t k = 0; k < columns; ++k)
    each_vector<V>([&](int64_t offset) LLMQ_LAMBDA_INLINE {
      const int64_t at = k * kRows + offset;
      V::store(to + at, V::sub(V::load(start + at), V::mul(V::load(factor + offset), V::load(x + at))));
    });
}

// c[i][j] (+)= sum_u a[i][u] b[u][j] in FP64 for j < 4 V::kDoubles, a fused chain over u.
template <class V, int Rows>
__attribute__((noinline)) void gemm_f64_tile(double* c, int64_t c_row, const double* a, int64_t a_row,
                                             const double* b, int64_t depth, bool accumulate) {
  constexpr int kVectors = 4;
  typename V::D acc[Rows][kVectors];
  const auto each = [&](const auto& body) LLMQ_LAMBDA_INLINE {
    unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE {
      unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
        body(acc[decltype(r)::value][decltype(v)::value],
             decltype(r)::value * c_row + decltype(v)::value * V::kDoubles);
      });
    });
  };
  if (accumulate)
    each([&](typename V::D& sum, int64_t at) LLMQ_LAMBDA_INLINE { sum = V::loadd(c + at); });
  else
    each([&](typename V::D& sum, int64_t) LLMQ_LAMBDA_INLINE { sum = V::setd(0); });
  for (int64_t u = 0; u < depth; ++u) {
    typename V::D right[kVectors];
    unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
      right[decltype(v)::value] = V::loadd(b + (u * kVectors + decltype(v)::value) * V::kDoubles);
    });
    unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE {
      const auto left = V::setd(a[decltype(r)::value * a_row + u]);
      unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
        auto& sum = acc[decltype(r)::value][decltype(v)::value];
        sum = V::fmad(left, right[decltype(v)::value], sum);
      });
    });
  }
  each([&](typename V::D& sum, int64_t at) LLMQ_LAMBDA_INLINE { V::stored(c + at, sum); });
}

template <class V, int Rows>
LLMQ_INLINE void gemm_f64_last(double* c, int64_t c_row, const double* a, int64_t a_row, const double* b,
                               int64_t rows, int64_t depth, bool accumulate) {
  if constexpr (Rows > 0) {
    if (rows == Rows)
      gemm_f64_tile<V, Rows>(c, c_row, a, a_row, b, depth, accumulate);
    else
      gemm_f64_last<V, Rows - 1>(c, c_row, a, a_row, b, rows, depth, accumulate);
  }
}

// The same for any number of rows; b is one panel of 4 V::kDoubles columns, [depth][panel].
template <class V>
void gemm_f64(double* c, int64_t c_row, const double* a, int64_t a_row, const double* b, int64_t rows,
              int64_t depth, bool accumulate) {
  constexpr int kTile = V::kRowTile / 2;
  for (; rows >= kTile; rows -= kTile, c += kTile * c_row, a += kTile * a_row)
    gemm_f64_tile<V, kTile>(c, c_row, a, a_row, b, depth, accumulate);
  gemm_f64_last<V, kTile - 1>(c, c_row, a, a_row, b, rows, depth, accumulate);
}

}  // namespace llmq

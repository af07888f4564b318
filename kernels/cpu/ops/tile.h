// Rounding with error feedback on a tile of rows (kernels/common/row_tile.h): lanes are rows, every operation
// is one of kernels/common/tile_arithmetic.h per lane, in the order of the columns.
//
// The chain inside a block goes eight columns at a time; what they leave to the columns after them is a
// product.
#pragma once
#include "kernels/common/row_tile.h"
#include "kernels/common/tile_arithmetic.h"
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

// Column k of the tile, at one of its vectors.
template <class V>
struct TilePlace {
  int64_t at, grid;
  LLMQ_INLINE TilePlace(const TileColumns& t, int64_t k, int64_t offset)
      : at(k * TileRow<V>::kRows + offset), grid(t.group[k] * TileRow<V>::kRows + offset) {}
  LLMQ_INLINE TileColumn<V> column(const TileColumns& t) const {
    return {V::load(t.weight + at), V::load(t.carried + at), V::load(t.scale + grid), V::load(t.zero + grid),
            t.top};
  }
  LLMQ_INLINE void write(const TileColumns& t, const ColumnResult<V>& result) const {
    V::store(t.steps + at, result.steps);
    V::store(t.difference + at, result.difference);
  }
};

// Steps write the error of column k where the columns after it read it.
template <class V>
struct RoundStep {
  static LLMQ_INLINE void apply(const TileColumns& t, int64_t k, int64_t offset, float* error) {
    const TilePlace<V> place(t, k, offset);
    const auto result = round_column<V>(place.column(t));
    place.write(t, result);
    V::store(error + offset, result.error);
  }
};

template <class V>
struct DescendStep {
  static LLMQ_INLINE void apply(const TileColumns& t, int64_t k, int64_t offset, float* error) {
    const TilePlace<V> place(t, k, offset);
    const auto result = descend_column<V>(place.column(t), V::load(t.steps + place.at), t.inverse[k]);
    place.write(t, result);
    V::store(error + offset, result.error);
  }
};

template <class V>
struct TryStep {
  static LLMQ_INLINE void apply(const TileColumns& t, int64_t k, int64_t offset, float* error) {
    auto loss = V::load(t.loss + offset);
    V::store(error + offset, try_column<V>(TilePlace<V>(t, k, offset).column(t), t.cost[k], loss));
    V::store(t.loss + offset, loss);
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
    const auto s = V::load(scale + offset), z = V::load(zero + offset), inverse = V::div(V::set(1.0f), s);
    auto sum = V::set(0.0f);
    for (int64_t k = 0; k < columns; ++k)
      sum = plain_loss<V>(sum, V::load(w + k * kRows + offset), importance[k], s, inverse, z, top);
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

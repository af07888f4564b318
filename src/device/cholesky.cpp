// Left-looking blocked Cholesky. Every element is one chain over k in order, so nothing depends on threads;
// below the diagonal a block's rows are multiplied by the inverse of its triangle, which makes them products
// too.
#include "device/cholesky.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "device/host_tiles.h"

namespace llmq {
namespace {

constexpr std::int64_t kBlock = LowerTriangle::kBlock, kRowsPerItem = 48;
constexpr auto kSquare = static_cast<std::size_t>(kBlock * kBlock);

// A block of rows [kBlock][depth], turned and negated, in panels for the product: panel p is [depth][panel].
void pack_panels(std::vector<double>& packed, const double* rows, std::int64_t stride, std::int64_t depth,
                 double sign) {
  const std::int64_t panel = host_panel_f64();
  packed.resize(static_cast<std::size_t>(depth * kBlock));
  if (depth == 0) return;
  for (std::int64_t c = 0; c < kBlock; ++c) {
    double* const to = packed.data() + c / panel * panel * depth + c % panel;
    for (std::int64_t u = 0; u < depth; ++u) to[u * panel] = sign * rows[c * stride + u];
  }
}

// The same of kBlock columns of `depth` rows, not turned; row(u) points at the first of them.
template <class Row>
void pack_columns(std::vector<double>& packed, const Row& row, std::int64_t depth, double sign) {
  const std::int64_t panel = host_panel_f64();
  packed.resize(static_cast<std::size_t>(depth * kBlock));
  for (std::int64_t u = 0; u < depth; ++u) {
    const double* const columns = row(u);
    for (std::int64_t c = 0; c < kBlock; ++c)
      packed[static_cast<std::size_t>(c / panel * panel * depth + u * panel + c % panel)] = sign * columns[c];
  }
}

// c [rows][kBlock] (+)= a [rows][depth] times packed panels
void multiply(double* c, std::int64_t c_row, const double* a, std::int64_t a_row,
              const std::vector<double>& packed, std::int64_t rows, std::int64_t depth, bool accumulate) {
  const std::int64_t panel = host_panel_f64();
  for (std::int64_t p = 0; p < kBlock; p += panel)
    host_product_f64(c + p, c_row, a, a_row, packed.data() + p * depth, rows, depth, accumulate);
}

bool factorize_diagonal(double* block, std::int64_t stride) {
  for (std::int64_t c = 0; c < kBlock; ++c) {
    double* const row = block + c * stride;
    for (std::int64_t d = 0; d <= c; ++d) {
      const double* const other = block + d * stride;
      double sum = row[d];
      for (std::int64_t u = 0; u < d; ++u) sum -= row[u] * other[u];
      if (d < c) {
        row[d] = sum / other[d];
        continue;
      }
      if (!(sum > 0 && std::isfinite(sum))) return false;
      row[c] = std::sqrt(sum);
    }
  }
  return true;
}

// inverse [kBlock][kBlock] of a lower triangle
void invert_triangle(const double* block, std::int64_t stride, std::vector<double>& inverse) {
  inverse.assign(kSquare, 0);
  for (std::int64_t i = 0; i < kBlock; ++i) {
    double* const row = inverse.data() + i * kBlock;
    for (std::int64_t u = 0; u < i; ++u) {
      const double factor = block[i * stride + u];
      const double* const other = inverse.data() + u * kBlock;
      for (std::int64_t j = 0; j <= u; ++j) row[j] -= factor * other[j];
    }
    const double pivot = block[i * stride + i];
    for (std::int64_t j = 0; j < i; ++j) row[j] /= pivot;
    row[i] = 1 / pivot;
  }
}

}  // namespace

void LowerTriangle::pad() {
  for (std::int64_t i = size_; i < padded_; ++i) {
    std::fill_n(row(i), stride(i), 0.0);
    row(i)[i] = 1;
  }
}

bool cholesky_lower(LowerTriangle& matrix, ThreadPool& pool) {
  const std::int64_t padded = matrix.padded();
  matrix.pad();
  std::vector<double> left, inverse, triangle;
  for (std::int64_t k = 0; k < padded; k += kBlock) {
    const std::int64_t stride = LowerTriangle::stride(k);
    double* const diagonal = matrix.row(k) + k;
    pack_panels(left, matrix.row(k), stride, k, -1);
    multiply(diagonal, stride, matrix.row(k), stride, left, kBlock, k, true);
    if (!factorize_diagonal(diagonal, stride)) return false;
    invert_triangle(diagonal, stride, inverse);
    pack_panels(triangle, inverse.data(), kBlock, kBlock, 1);
    // A block of rows is one item: its rows have one stride.
    pool.parallel_for(static_cast<std::size_t>((padded - k) / kBlock - 1), [&](std::size_t item, int) {
      const std::int64_t begin = k + kBlock * (static_cast<std::int64_t>(item) + 1);
      const std::int64_t row = LowerTriangle::stride(begin);
      double* const to = matrix.row(begin) + k;
      multiply(to, row, matrix.row(begin), row, left, kBlock, k, true);
      double updated[kBlock * kBlock];
      for (std::int64_t i = 0; i < kBlock; ++i)
        std::memcpy(updated + i * kBlock, to + i * row, kBlock * sizeof(double));
      multiply(to, row, updated, kBlock, triangle, kBlock, kBlock, false);
    });
  }
  return true;
}

void solve_rows(const LowerTriangle& factor, std::span<double> rows, ThreadPool& pool) {
  const std::int64_t stride = factor.padded(), count = static_cast<std::int64_t>(rows.size()) / stride;
  std::vector<double> others, inverse, triangle;
  // rows' block k: minus what the solved blocks [from, from + depth) say of it, times the triangle's inverse.
  const auto solve_block = [&](std::int64_t k, std::int64_t from, std::int64_t depth) {
    pool.parallel_for(static_cast<std::size_t>((count + kRowsPerItem - 1) / kRowsPerItem),
                      [&](std::size_t item, int) {
                        const std::int64_t begin = static_cast<std::int64_t>(item) * kRowsPerItem;
                        const std::int64_t here = std::min(kRowsPerItem, count - begin);
                        double* const row = rows.data() + begin * stride;
                        multiply(row + k, stride, row + from, stride, others, here, depth, true);
                        double updated[kRowsPerItem * kBlock];
                        for (std::int64_t i = 0; i < here; ++i)
                          std::memcpy(updated + i * kBlock, row + k + i * stride, kBlock * sizeof(double));
                        multiply(row + k, stride, updated, kBlock, triangle, here, kBlock, false);
                      });
  };
  for (std::int64_t k = 0; k < stride; k += kBlock) {  // Y L^T = rows
    pack_panels(others, factor.row(k), LowerTriangle::stride(k), k, -1);
    invert_triangle(factor.row(k) + k, LowerTriangle::stride(k), inverse);
    pack_panels(triangle, inverse.data(), kBlock, kBlock, 1);
    solve_block(k, 0, k);
  }
  for (std::int64_t k = stride - kBlock; k >= 0; k -= kBlock) {  // X L = Y
    const std::int64_t next = k + kBlock;
    pack_columns(
        others, [&](std::int64_t u) { return factor.row(next + u) + k; }, stride - next, -1);
    invert_triangle(factor.row(k) + k, LowerTriangle::stride(k), inverse);
    pack_columns(
        triangle, [&](std::int64_t u) { return inverse.data() + u * kBlock; }, kBlock, 1);
    solve_block(k, next, stride - next);
  }
}

}  // namespace llmq

// Left-looking blocked Cholesky: every element is one chain over k in order, so nothing depends on threads.
#include "quant/factorization.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace llmq {
namespace {

constexpr std::int64_t kBlock = 64, kRowsPerItem = 32;

std::int64_t ceil_of(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// rows [begin, end) of columns [k, k + width): minus the products of what is already factorized to the left.
void update_rows(double* a, std::int64_t size, std::int64_t begin, std::int64_t end, std::int64_t k,
                 std::int64_t width, const double* transposed) {
  for (std::int64_t i = begin; i < end; ++i) {
    double* __restrict const to = a + i * size + k;
    const double* const row = a + i * size;
    for (std::int64_t u = 0; u < k; ++u) {
      const double factor = row[u];
      const double* __restrict const from = transposed + u * kBlock;
      for (std::int64_t c = 0; c < width; ++c) to[c] -= factor * from[c];
    }
  }
}

bool factorize_diagonal(double* a, std::int64_t size, std::int64_t k, std::int64_t width) {
  for (std::int64_t c = k; c < k + width; ++c) {
    double* const row = a + c * size;
    for (std::int64_t d = k; d < c; ++d) {
      const double* const other = a + d * size;
      double sum = row[d];
      for (std::int64_t u = k; u < d; ++u) sum -= row[u] * other[u];
      row[d] = sum / other[d];
    }
    double pivot = row[c];
    for (std::int64_t u = k; u < c; ++u) pivot -= row[u] * row[u];
    if (!(pivot > 0 && std::isfinite(pivot))) return false;
    row[c] = std::sqrt(pivot);
  }
  return true;
}

void solve_rows(double* a, std::int64_t size, std::int64_t begin, std::int64_t end, std::int64_t k,
                std::int64_t width) {
  for (std::int64_t i = begin; i < end; ++i) {
    double* const row = a + i * size;
    for (std::int64_t c = k; c < k + width; ++c) {
      const double* const other = a + c * size;
      double sum = row[c];
      for (std::int64_t u = k; u < c; ++u) sum -= row[u] * other[u];
      row[c] = sum / other[c];
    }
  }
}

}  // namespace

bool cholesky_lower(std::vector<double>& matrix, std::int64_t size, ThreadPool& pool) {
  double* const a = matrix.data();
  std::vector<double> transposed(static_cast<std::size_t>(size * kBlock));
  for (std::int64_t k = 0; k < size; k += kBlock) {
    const std::int64_t width = std::min(kBlock, size - k);
    for (std::int64_t c = 0; c < width; ++c)
      for (std::int64_t u = 0; u < k; ++u)
        transposed[static_cast<std::size_t>(u * kBlock + c)] = a[(k + c) * size + u];
    const auto by_rows = [&](std::int64_t first, const auto& body) {
      pool.parallel_for(static_cast<std::size_t>(ceil_of(size - first, kRowsPerItem)),
                        [&](std::size_t item, int) {
                          const std::int64_t begin = first + static_cast<std::int64_t>(item) * kRowsPerItem;
                          body(begin, std::min(begin + kRowsPerItem, size));
                        });
    };
    by_rows(k, [&](std::int64_t begin, std::int64_t end) {
      update_rows(a, size, begin, end, k, width, transposed.data());
    });
    if (!factorize_diagonal(a, size, k, width)) return false;
    if (k + width < size)
      by_rows(k + width,
              [&](std::int64_t begin, std::int64_t end) { solve_rows(a, size, begin, end, k, width); });
  }
  return true;
}

Factorization factorize(std::int64_t size, double damp, double mean_diagonal,
                        const std::function<double(std::int64_t, std::int64_t)>& element, ThreadPool& pool) {
  Factorization result;
  result.size = size;
  result.lambda = mean_diagonal > 0 ? damp * mean_diagonal : 1;
  const auto at = [&](std::int64_t i, std::int64_t j) { return static_cast<std::size_t>(i * size + j); };
  std::vector<double> a(static_cast<std::size_t>(size * size));
  for (;; result.lambda *= 10, ++result.raises) {
    // Last column first: the lower factor of the reversed matrix, reversed, is the upper factor.
    pool.parallel_for(static_cast<std::size_t>(size), [&](std::size_t row, int) {
      const auto i = static_cast<std::int64_t>(row);
      for (std::int64_t j = 0; j <= i; ++j)
        a[at(i, j)] = element(size - 1 - i, size - 1 - j) + (i == j ? result.lambda : 0);
    });
    if (cholesky_lower(a, size, pool)) break;
    if (result.raises == kMostRaises)
      fail(ErrorKind::kBadInput,
           {fmt::format("the inputs' Gram matrix has no Cholesky factor, not even with lambda = {:g} ({} "
                        "times the mean of its diagonal)",
                        result.lambda, result.lambda / mean_diagonal),
            {},
            {},
            "the calibration inputs are not finite or the statistics are damaged; take them again"});
  }
  result.unit_upper.resize(a.size());
  result.pivot.resize(static_cast<std::size_t>(size));
  pool.parallel_for(static_cast<std::size_t>(size), [&](std::size_t row, int) {
    const auto i = static_cast<std::int64_t>(row);
    for (std::int64_t j = i; j < size; ++j)
      result.unit_upper[at(i, j)] = a[at(size - 1 - i, size - 1 - j)] / a[at(size - 1 - j, size - 1 - j)];
    result.pivot[row] = a[at(size - 1 - i, size - 1 - i)] * a[at(size - 1 - i, size - 1 - i)];
  });
  return result;
}

}  // namespace llmq

// The factor that rounding with error feedback needs, in FP64:
//
//   H + lambda I = R R^T,  R upper triangular        (Cholesky from the last column to the first: no inverse)
//
// L = R diag(1 / R_kk) is unit upper triangular and carries errors forward, R_kk^2 is what an error left in
// column k costs: tr(D (H + lambda I) D^T) = sum_k R_kk^2 (D L)_k^2.
//
// lambda = damp * mean(diag H). Where that leaves a pivot that is not positive, lambda is raised tenfold, at
// most kMostRaises times; how often is part of the result. Cost: K^3 / 3 products.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "base/threads.h"

namespace llmq {

inline constexpr int kMostRaises = 8;

struct Factorization {
  std::int64_t size = 0;
  std::vector<double> unit_upper;  // [size, size], row by row; what is below the diagonal is 0
  std::vector<double> pivot;       // R_kk^2
  double lambda = 0;
  int raises = 0;
};

// element(i, j) of H, read for i <= j; mean_diagonal is that of the columns that are alive. Error(kBadInput)
// where no lambda does: the statistics are then not a Gram matrix, or not finite.
Factorization factorize(std::int64_t size, double damp, double mean_diagonal,
                        const std::function<double(std::int64_t, std::int64_t)>& element, ThreadPool& pool);

// a [size, size]: the lower triangle becomes the Cholesky factor of the symmetric matrix that it holds. False
// where a pivot is not positive and finite; a is then of no use.
bool cholesky_lower(std::vector<double>& a, std::int64_t size, ThreadPool& pool);

}  // namespace llmq

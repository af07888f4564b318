// The factor that rounding with error feedback needs, in FP64:
//
//   H + lambda I = R R^T,  R upper triangular        (Cholesky from the last column to the first: no inverse)
//
// L = R diag(1 / R_kk) is unit upper triangular and carries errors forward, R_kk^2 is what an error left in
// column k costs: tr(D (H + lambda I) D^T) = sum_k R_kk^2 (D L)_k^2.
//
// lambda = damp * mean(diag H). Where that leaves a pivot that is not positive, lambda is raised tenfold, at
// most kMostRaises times; how often is part of the result. Cost: K^3 / 3 operations, 8 K^2 bytes.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/threads.h"

namespace llmq {

inline constexpr int kMostRaises = 8;

// A square whose rows are whole blocks of the factorization; what is behind the last column is the identity's.
class LowerSquare {
 public:
  static constexpr std::int64_t kBlock = 64;
  explicit LowerSquare(std::int64_t size)
      : size_(size),
        stride_((size + kBlock - 1) / kBlock * kBlock),
        values_(static_cast<std::size_t>(stride_ * stride_)) {}
  std::int64_t size() const { return size_; }
  std::int64_t stride() const { return stride_; }
  double* row(std::int64_t i) { return values_.data() + i * stride_; }
  const double* row(std::int64_t i) const { return values_.data() + i * stride_; }

 private:
  std::int64_t size_, stride_;
  std::vector<double> values_;
};

struct Factorization {
  LowerSquare reversed;  // the lower Cholesky factor of H + lambda I with rows and columns from last to first
  double lambda = 0;
  int raises = 0;

  double upper(std::int64_t i, std::int64_t j) const {  // R, i <= j
    const std::int64_t last = reversed.size() - 1;
    return reversed.row(last - i)[last - j];
  }
};

// element(i, j) of H, read for i >= j; mean_diagonal is that of the columns that are alive. Error(kBadInput)
// where no lambda does: the statistics are then not a Gram matrix, or not finite.
Factorization factorize(std::int64_t size, double damp, double mean_diagonal,
                        const std::function<double(std::int64_t, std::int64_t)>& element, ThreadPool& pool);

// The lower triangle becomes the Cholesky factor of the symmetric matrix that it holds. False where a pivot is
// not positive and finite; the values are then of no use.
bool cholesky_lower(LowerSquare& matrix, ThreadPool& pool);

// rows [count][factor.stride()] becomes rows (L L^T)^-1, L the lower Cholesky factor; what is behind the last column
// is zero and stays so. 2 K^2 operations per row.
void solve_rows(const LowerSquare& factor, std::span<double> rows, ThreadPool& pool);

}  // namespace llmq

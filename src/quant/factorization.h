// The factor that rounding with error feedback needs, in FP64:
//
//   H + lambda I = R R^T,  R upper triangular        (Cholesky from the last column to the first: no inverse)
//
// L = R diag(1 / R_kk) is unit upper triangular and carries errors forward, R_kk^2 is what an error left in
// column k costs: tr(D (H + lambda I) D^T) = sum_k R_kk^2 (D L)_k^2.
//
// lambda = damp * mean(diag H). Where that leaves a pivot that is not positive, lambda is raised tenfold, at
// most kMostRaises times; how often is part of the result. Cost: K^3 / 3 operations, 4 K^2 bytes.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/threads.h"

namespace llmq {

inline constexpr int kMostRaises = 8;

// The lower triangle of a square, by rows of whole blocks: row i has the columns up to the end of its block. What is behind
// the last column of the square is the identity's.
class LowerTriangle {
 public:
  static constexpr std::int64_t kBlock = 64;
  explicit LowerTriangle(std::int64_t size)
      : size_(size),
        padded_((size + kBlock - 1) / kBlock * kBlock),
        values_(static_cast<std::size_t>(begin_of(padded_ / kBlock))) {}
  std::int64_t size() const { return size_; }
  std::int64_t padded() const { return padded_; }  // rows, in whole blocks
  double* row(std::int64_t i) { return values_.data() + place(i); }
  const double* row(std::int64_t i) const { return values_.data() + place(i); }
  static std::int64_t stride(std::int64_t i) {
    return (i / kBlock + 1) * kBlock;
  }  // of the rows in i's block
  static std::uint64_t bytes(std::int64_t size) {
    return static_cast<std::uint64_t>(begin_of((size + kBlock - 1) / kBlock)) * sizeof(double);
  }

 private:
  static std::int64_t begin_of(std::int64_t block) { return kBlock * kBlock * block * (block + 1) / 2; }
  static std::int64_t place(std::int64_t i) { return begin_of(i / kBlock) + i % kBlock * stride(i); }
  std::int64_t size_, padded_;
  std::vector<double> values_;
};

struct Factorization {
  LowerTriangle
      reversed;  // the lower Cholesky factor of H + lambda I with rows and columns from last to first
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
bool cholesky_lower(LowerTriangle& matrix, ThreadPool& pool);

// rows [count][factor.padded()] becomes rows (L L^T)^-1, L the lower Cholesky factor; what is behind the last column
// is zero and stays so. 2 K^2 operations per row.
void solve_rows(const LowerTriangle& factor, std::span<double> rows, ThreadPool& pool);

}  // namespace llmq

// Cholesky factors in FP64 in the host's memory, by its widest vectors (device/host_tiles.h):
// A = L L^T,  and rows (L L^T)^-1.
//
// Every sum is one chain in order, so that no bit depends on threads or on the level. Cost: K^3 / 3
// operations and 4 K^2 bytes to factor.
#pragma once
#include <cstdint>
#include <span>

#include "base/threads.h"
#include "base/zeroed_numbers.h"

namespace llmq {

// The lower triangle of a square, by rows of whole blocks: row i has the columns up to the end of its block.
// What is behind the last column of the square is the identity's.
class LowerTriangle {
 public:
  static constexpr std::int64_t kBlock = 64;
  explicit LowerTriangle(std::int64_t size)
      : size_(size),
        padded_((size + kBlock - 1) / kBlock * kBlock),
        values_(static_cast<std::size_t>(begin_of(padded_ / kBlock))) {}
  std::int64_t size() const { return size_; }
  std::int64_t padded() const { return padded_; }  // rows, in whole blocks
  void pad();                                      // the identity's rows behind the last
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
  ZeroedNumbers<double> values_;
};

// The lower triangle becomes the Cholesky factor of the symmetric matrix that it holds. False where a pivot
// is not positive and finite; the values are then of no use.
bool cholesky_lower(LowerTriangle& matrix, ThreadPool& pool);

// rows [count][factor.padded()] becomes rows (L L^T)^-1, L the lower Cholesky factor; what is behind the last
// column is zero and stays so. 2 K^2 operations per row.
void solve_rows(const LowerTriangle& factor, std::span<double> rows, ThreadPool& pool);

}  // namespace llmq

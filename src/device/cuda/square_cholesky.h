// What factors squares in the memory of a CUDA device: the library on a device (cusolver.cpp), the host
// behind the same interface in the emulation.
#pragma once
#include <cstdint>

namespace llmq {

// Cholesky factors of squares in the device's memory: [size, size] FP64 by rows, of which the lower triangle
// is looked at, finite throughout. (To a library that counts by columns it is the upper one.) Returns 0, k >
// 0 where the leading minor of order k is not positive, whose square is then of no use, or -i where argument
// i is at fault. Other errors are thrown and name call and size.
class SquareCholesky {
 public:
  virtual ~SquareCholesky() = default;
  virtual int factor(double* square, std::int64_t size) = 0;
  // rows [count][stride] becomes rows (L L^T)^-1 in its first `size` columns.
  virtual int solve(const double* square, std::int64_t size, double* rows, std::int64_t stride,
                    std::int64_t count) = 0;
};

}  // namespace llmq

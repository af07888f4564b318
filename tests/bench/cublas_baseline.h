// What a program without kernels of its own for codes would do, to compare with: 4-bit codes that are
// dequantized in every call and multiplied by the library that calibration uses
// (device/cuda/dense/cublaslt.h). For benchmarks only.
#pragma once
#include <memory>

#include "device/cuda/dense/cublaslt.h"
#include "tensor/tensor_view.h"
#include "tests/bench/dequantize4.h"

namespace llmq {

// Works beside the backend of the same device, not in its order: wait for one before the other is given what
// it wrote.
class CublasBaseline {
 public:
  virtual ~CublasBaseline() = default;
  // y [m, n] F32 = x [m, k] w[n, k]^T, both BF16, row-major and contiguous, by the library's first plan. The
  // first call of a shape prepares it.
  virtual void multiply(const TensorView& y, const TensorView& x, const TensorView& w) = 0;
  virtual void dequantize(const cuda::Dequantize4& codes) = 0;
  virtual void wait() = 0;
};

// On CUDA's device `index`, where the library was found. Error(kDevice) naming the call.
std::unique_ptr<CublasBaseline> make_cublas_baseline(int index);

}  // namespace llmq

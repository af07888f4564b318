// What a program without kernels of its own would do, to compare with: dense products by NVIDIA's cuBLASLt,
// BF16 with FP32 sums, and 4-bit codes that are dequantized for them. For benchmarks only; nothing else needs
// the library, which is opened when it is first asked for.
//
// The algorithm of a product is the first that the library's heuristic names for its shape, with 32 MiB to
// work in.
#pragma once
#include <memory>
#include <string>

#include "tensor/tensor_view.h"
#include "tests/bench/dequantize4.h"

namespace llmq {

struct CublasFound {
  std::string version;  // "13.1.0"; empty where there is none
  std::string missing;  // why there is none
};
const CublasFound& find_cublas();  // looks once in a process

// Works beside the backend of the same device, not in its order: wait for one before the other is given what
// it wrote.
class CublasBaseline {
 public:
  virtual ~CublasBaseline() = default;
  // y [m, n] F32 = x [m, k] w[n, k]^T, both BF16, row-major and contiguous. The first call of a shape
  // prepares it.
  virtual void multiply(const TensorView& y, const TensorView& x, const TensorView& w) = 0;
  virtual void dequantize(const cuda::Dequantize4& codes) = 0;
  virtual void wait() = 0;
};

// On CUDA's device `index`, where the library was found. Error(kDevice) naming the call.
std::unique_ptr<CublasBaseline> make_cublas_baseline(int index);

}  // namespace llmq

// What stands in for cublas_baseline.cpp where CUDA is not built, or its toolkit is without cuBLASLt's
// header.
#include "base/error.h"
#include "bench/cublas_baseline.h"

namespace llmq {

std::unique_ptr<CublasBaseline> make_cublas_baseline(int) {
  fail(ErrorKind::kInternal, "{}", find_cublaslt().missing);
}

}  // namespace llmq

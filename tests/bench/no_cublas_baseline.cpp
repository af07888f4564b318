// What stands in for cublas_baseline.cpp where CUDA is not built, or its toolkit is without cuBLASLt's
// header.
#include "base/error.h"
#include "bench/cublas_baseline.h"

namespace llmq {

const CublasFound& find_cublas() {
  static const CublasFound found{{}, "this program was built without cuBLASLt"};
  return found;
}

std::unique_ptr<CublasBaseline> make_cublas_baseline(int) {
  fail(ErrorKind::kInternal, "{}", find_cublas().missing);
}

}  // namespace llmq

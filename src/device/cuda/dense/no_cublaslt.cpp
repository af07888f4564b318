// What stands in for cublaslt.cpp where a toolkit without cuBLASLt's header, or none, was found.
#include "base/error.h"
#include "device/cuda/dense/cublaslt.h"

namespace llmq {

const CublasltFound& find_cublaslt() {
  static const CublasltFound found{{}, {}, "this llmq was built without cuBLASLt"};
  return found;
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): the other implementation keeps it
std::unique_ptr<DenseLibrary> make_cublaslt(std::shared_ptr<MemoryResource>, void*) {
  fail(ErrorKind::kInternal, "{}", find_cublaslt().missing);
}

}  // namespace llmq

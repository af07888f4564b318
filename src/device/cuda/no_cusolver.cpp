// What stands in for cusolver.cpp where a toolkit without cuSOLVER's header, or none, was found.
#include "base/error.h"
#include "device/cuda/cusolver.h"

namespace llmq {

const CusolverFound& find_cusolver() {
  static const CusolverFound found{{}, {}, "this llmq was built without cuSOLVER"};
  return found;
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): the other implementation keeps it
std::unique_ptr<SquareCholesky> make_cusolver(std::shared_ptr<MemoryResource>, void*) {
  fail(ErrorKind::kInternal, "{}", find_cusolver().missing);
}

}  // namespace llmq

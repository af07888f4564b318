// Holds the place of the CPU levels until they are here.
#include "device/cpu/cpu_backend.h"

#include "base/error.h"

namespace llmq {

std::vector<std::string> cpu_levels_present() { return {}; }

std::shared_ptr<Backend> make_cpu_backend_at(int, const std::string& level) {
  fail(ErrorKind::kUnsupported,
       ErrorDetail{fmt::format("the CPU level '{}' is not built into this llmq", level),
                   {},
                   "--device",
                   "use --device reference"});
}

std::shared_ptr<Backend> make_cpu_backend(int threads) { return make_cpu_backend_at(threads, "scalar"); }

}  // namespace llmq

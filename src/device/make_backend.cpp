// From the word after --device to a backend.
#include <charconv>

#include "base/error.h"
#include "base/threads.h"
#include "device/backend.h"
#include "device/cpu/cpu_backend.h"
#include "device/cuda/cuda_backend.h"

namespace llmq {
namespace {

[[noreturn]] void refuse(const std::string& device) {
  fail(ErrorKind::kUsage, ErrorDetail{fmt::format("device '{}' is not known", device),
                                      {},
                                      "--device",
                                      "use auto, cpu, cuda, cuda:N, reference, fake or emulated"});
}

// "cuda" is the first device, "cuda:N" the N-th.
int cuda_index(const std::string& device) {
  if (device == "cuda") return 0;
  int index = 0;
  const char* first = device.data() + 5;
  const char* last = device.data() + device.size();
  const auto [end, error] = std::from_chars(first, last, index);
  if (error != std::errc() || end != last || index < 0) refuse(device);
  return index;
}

}  // namespace

std::shared_ptr<Backend> make_backend(const BackendRequest& request) {
  const std::string& device = request.device;
  if (request.threads < 0)
    fail(ErrorKind::kUsage,
         ErrorDetail{
             fmt::format("{} threads are asked for", request.threads), {}, "--threads", "give 1 or more"});
  const int threads = request.threads == 0 ? available_cores() : request.threads;
  const bool cpu = device == "auto" || device == "cpu";
  if (!request.arithmetic.empty() && cpu) return make_cpu_backend_of(threads, request.arithmetic);
  if (cpu) return make_cpu_backend(threads);
  if (!request.arithmetic.empty())
    fail(ErrorKind::kUnsupported,
         ErrorDetail{fmt::format("the device '{}' does not compute as '{}'", device, request.arithmetic),
                     {},
                     "--device",
                     "use cpu"});
  if (device == "reference") return make_reference_backend();
  if (device == "fake") return make_fake_backend();
  if (device == "emulated") return make_emulated_cuda_backend(threads);
  if (device == "cuda" || device.rfind("cuda:", 0) == 0) return make_cuda_backend(cuda_index(device), threads);
  refuse(device);
}

}  // namespace llmq

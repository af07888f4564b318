// From the word after --device to a backend.
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/threads.h"
#include "device/automatic_device.h"
#include "device/backend.h"
#include "device/cpu/cpu_backend.h"
#include "device/cuda/cuda_backend.h"

namespace llmq {
namespace {

[[noreturn]] void refuse_device(const std::string& device) {
  fail(ErrorKind::kUsage, {fmt::format("device '{}' is not known", device),
                           {},
                           "--device",
                           "use auto, cpu, cuda, cuda:N, reference, fake, emulated or emulated:N"});
}

bool is_kind(const std::string& device, const std::string& kind) {
  return device == kind || device.rfind(kind + ":", 0) == 0;
}

// "cuda" is the first device, "cuda:N" the N-th.
int index_of(const std::string& device, const std::string& kind) {
  if (device == kind) return 0;
  int index = 0;
  const char* first = device.data() + kind.size() + 1;
  const char* last = device.data() + device.size();
  const auto [end, error] = std::from_chars(first, last, index);
  if (error != std::errc() || end != last || index < 0) refuse_device(device);
  return index;
}

// LLMQ_EMULATED_MEMORY: bytes that an emulated device has; without end where it is not set.
std::optional<std::uint64_t> emulated_memory() {
  const char* const word = std::getenv("LLMQ_EMULATED_MEMORY");
  if (word == nullptr || *word == '\0') return {};
  std::uint64_t bytes = 0;
  const char* const last = word + std::strlen(word);
  if (const auto [end, error] = std::from_chars(word, last, bytes); error != std::errc() || end != last)
    fail(ErrorKind::kUsage,
         {fmt::format("'{}' is no number of bytes", word), {}, "LLMQ_EMULATED_MEMORY", "write it in digits"});
  return bytes;
}

}  // namespace

std::shared_ptr<Backend> make_backend(const BackendRequest& request) {
  const std::string device = request.device != "auto"      ? request.device
                             : !request.arithmetic.empty() ? "cpu"
                                                           : automatic_device().device;
  if (request.threads < 0)
    fail(ErrorKind::kUsage,
         {fmt::format("{} threads are asked for", request.threads), {}, "--threads", "give 1 or more"});
  const int threads = request.threads == 0 ? available_cores() : request.threads;
  if (device == "cpu")
    return request.arithmetic.empty() ? make_cpu_backend(threads)
                                      : make_cpu_backend_of(threads, request.arithmetic);
  if (!request.arithmetic.empty())
    fail(ErrorKind::kUnsupported,
         {fmt::format("the device '{}' does not compute as '{}'", device, request.arithmetic),
          {},
          "--device",
          "use cpu"});
  if (device == "reference") return make_reference_backend();
  if (device == "fake") return make_fake_backend();
  if (is_kind(device, "emulated"))
    return make_emulated_cuda_backend(threads, {index_of(device, "emulated"), emulated_memory()},
                                      request.use);
  if (is_kind(device, "cuda")) return make_cuda_backend(index_of(device, "cuda"), threads, request.use);
  refuse_device(device);
}

}  // namespace llmq

#include "quant/plan/memory_limit.h"

#include "base/amount_text.h"
#include "base/error.h"

namespace llmq {
namespace {

constexpr std::uint64_t kReserve = 20, kMegabyte = 1'000'000;

}  // namespace

std::uint64_t memory_needed(std::uint64_t peak_bytes) { return peak_bytes + peak_bytes / kReserve; }

bool fits_in_memory(std::uint64_t peak_bytes, std::uint64_t memory_bytes) {
  return memory_needed(peak_bytes) <= memory_bytes;
}

bool fits_in_limit(std::uint64_t peak_bytes, std::uint64_t memory_limit) {
  return memory_limit == 0 || fits_in_memory(peak_bytes, memory_limit);
}

void check_memory_limit(std::uint64_t peak_bytes, std::uint64_t memory_limit, const std::string& source) {
  if (fits_in_limit(peak_bytes, memory_limit)) return;
  const std::uint64_t needed = memory_needed(peak_bytes), megabytes = (needed + kMegabyte - 1) / kMegabyte;
  fail(ErrorKind::kUsage,
       {fmt::format("the run needs {}, the limit is {}", bytes_text(needed), bytes_text(memory_limit)),
        source, "--memory-limit",
        fmt::format("--memory-limit {}MB would do, or fewer calibration samples", megabytes)});
}

}  // namespace llmq

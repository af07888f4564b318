#include "quant/plan/memory_limit.h"

#include "base/error.h"

namespace llmq {
namespace {

constexpr std::uint64_t kReserve = 20, kMebibyte = std::uint64_t{1} << 20;

std::uint64_t with_reserve(std::uint64_t peak_bytes) { return peak_bytes + peak_bytes / kReserve; }

}  // namespace

bool fits_in_memory(std::uint64_t peak_bytes, std::uint64_t memory_bytes) {
  return with_reserve(peak_bytes) <= memory_bytes;
}

std::uint64_t mebibytes_needed(std::uint64_t peak_bytes) {
  return (with_reserve(peak_bytes) + kMebibyte - 1) / kMebibyte;
}

bool fits_in_limit(std::uint64_t peak_bytes, std::uint64_t memory_limit) {
  return memory_limit == 0 || fits_in_memory(peak_bytes, memory_limit);
}

void check_memory_limit(std::uint64_t peak_bytes, std::uint64_t memory_limit, const std::string& source) {
  if (fits_in_limit(peak_bytes, memory_limit)) return;
  const std::uint64_t needed = mebibytes_needed(peak_bytes);
  fail(
      ErrorKind::kUsage,
      {fmt::format("the run needs {} MiB, the limit is {} MiB", needed, memory_limit / kMebibyte), source,
       "--memory-limit", fmt::format("--memory-limit {}MiB would do, or fewer calibration samples", needed)});
}

}  // namespace llmq

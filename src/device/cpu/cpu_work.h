// What every operation of the CPU backend works with: the kernels of its level, its threads, memory for what
// one call needs. Operations are cut into items for the pool, each item some calls of a kernel; nothing is
// summed across items, so no result depends on their number.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/threads.h"
#include "device/backend.h"
#include "device/cpu/worker_scratch.h"
#include "kernels/cpu/cpu_kernels.h"

namespace llmq {

struct CpuWork {
  const CpuKernels* kernels;
  ThreadPool* pool;
  WorkerScratch* scratch;
  std::shared_ptr<MemoryResource> memory;  // for what one call needs
};

inline CpuFormat format_of(Compute compute) {
  return compute == Compute::kFloat32 ? CpuFormat::kF32 : CpuFormat::kBF16;
}
inline CpuFormat format_of(DType dtype) { return dtype == DType::kF32 ? CpuFormat::kF32 : CpuFormat::kBF16; }
inline std::int64_t format_bytes(CpuFormat format) { return format == CpuFormat::kF32 ? 4 : 2; }

constexpr std::int64_t ceil_of(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Rows this many bytes apart (or a multiple) crowd into few sets of L1.
inline constexpr std::int64_t kSetStride = 1024;

// body(item, worker) of each.
template <class Body>
void each_item(const CpuWork& work, std::int64_t items, const Body& body) {
  const auto call = [&](std::size_t item, int worker) { body(static_cast<std::int64_t>(item), worker); };
  work.pool->parallel_for(static_cast<std::size_t>(items), std::cref(call));
}

// body(row) over rows of `width` elements of work each, several rows to an item: smaller operations are not
// worth waking a worker.
template <class Body>
void by_rows(ThreadPool& pool, std::int64_t rows, std::int64_t width, const Body& body) {
  constexpr std::int64_t kItemElements = 1 << 14;
  const std::int64_t chunk = std::max<std::int64_t>(1, kItemElements / std::max<std::int64_t>(1, width));
  const auto run = [&](std::size_t item, int) {
    const std::int64_t first = static_cast<std::int64_t>(item) * chunk;
    for (std::int64_t r = first; r < std::min(rows, first + chunk); ++r) body(r);
  };
  pool.parallel_for(static_cast<std::size_t>((rows + chunk - 1) / chunk), std::cref(run));
}

}  // namespace llmq

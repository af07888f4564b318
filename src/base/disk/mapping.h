// The two ways in which system files are mapped: by the kernel's page cache, or past it.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

#include "base/io.h"

namespace llmq {

struct AtomicCounters {
  std::atomic<std::uint64_t> bytes_read{0}, bytes_written{0};
};

// `fd` stays the caller's; `counters` outlive the mapping. Error(kIo).
std::unique_ptr<Mapping> map_cached(int fd, const Path& path, std::uint64_t bytes, AtomicCounters& counters);
// The same of a file opened with O_DIRECT: memory for leased blocks only, at addresses for all.
std::unique_ptr<Mapping> map_direct(int fd, const Path& path, std::uint64_t bytes, AtomicCounters& counters);

// [offset, offset + into.size()) of a file opened with O_DIRECT, in whole blocks through a buffer.
// Error(kIo).
void read_direct(int fd, const Path& path, std::uint64_t offset, std::span<std::byte> into,
                 AtomicCounters& counters);

}  // namespace llmq

// The two ways in which system files are mapped: by the kernel's page cache, or past it; and a mapping of no
// file, whose bytes are made when they are leased.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/io.h"

namespace llmq {

struct AtomicCounters {
  std::atomic<std::uint64_t> bytes_read{0}, bytes_written{0};
};

// `fd` stays the caller's; `counters` outlive the mapping. Error(kIo).
std::unique_ptr<Mapping> map_cached(int fd, const Path& path, std::uint64_t bytes, AtomicCounters& counters);
// The same of a file opened with O_DIRECT: memory for leased blocks only, at addresses for all.
std::unique_ptr<Mapping> map_direct(int fd, const Path& path, std::uint64_t bytes, AtomicCounters& counters);

// Writes the bytes that lie at `offset`: whole blocks of kIoBlock, but for the last. One thread at a time.
using MakeBytes = std::function<void(std::uint64_t offset, std::span<std::byte> into)>;
// A mapping of so many bytes, made for the first lease that takes a block and dropped with the last one: then
// they read as zeros. `of` is named where there are no addresses: Error(kIo). An error of `make` is the
// lease's.
std::unique_ptr<Mapping> map_made(const Path& of, std::uint64_t bytes, MakeBytes make);

// [offset, offset + into.size()) of a file opened with O_DIRECT, in whole blocks through a buffer.
// Error(kIo).
void read_direct(int fd, const Path& path, std::uint64_t offset, std::span<std::byte> into,
                 AtomicCounters& counters);

}  // namespace llmq

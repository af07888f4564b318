// Blocks are read when the first lease takes them and dropped when the last one goes; both under the
// mapping's mutex, a piece at a time, so that whoever waits for a block that another thread is reading waits
// for one piece.
#include "base/disk/mapping.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <mutex>

#include "base/checked.h"
#include "base/disk/held_blocks.h"
#include "base/disk/mapped_files.h"
#include "base/disk/system_file.h"
#include "base/error.h"

namespace llmq {
namespace {

constexpr std::uint64_t kPiece = std::uint64_t{8} << 20;
static_assert(kPiece % kIoBlock == 0);

std::uint64_t blocks_in(std::uint64_t bytes) { return ceil_div(bytes, kIoBlock); }

// Whole blocks of the disk, to `into`, which is aligned; the last one of the file may be short.
void read_blocks(int fd, const Path& path, BlockRange blocks, std::byte* into, std::uint64_t file_bytes) {
  const std::uint64_t end = std::min(blocks.last * kIoBlock, file_bytes);
  for (std::uint64_t at = blocks.first * kIoBlock; at < end;) {
    const std::uint64_t left = std::min(blocks.last * kIoBlock - at, kPiece);
    const ssize_t got = ::pread(fd, into, static_cast<std::size_t>(left), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(ErrorKind::kIo, path, fmt::format("cannot read at byte {}", at), errno);
    // A short count that is no whole number of blocks is the end of the file.
    if (got == 0 ||
        (static_cast<std::uint64_t>(got) % kIoBlock != 0 && at + static_cast<std::uint64_t>(got) < end))
      fail(ErrorKind::kIo,
           {fmt::format("ends at byte {}, {} more were expected", at + static_cast<std::uint64_t>(got),
                        end - at - static_cast<std::uint64_t>(got)),
            path.string(),
            {},
            {}});
    at += static_cast<std::uint64_t>(got);
    into += got;
  }
}

class SystemMapping : public Mapping {
 public:
  SystemMapping(void* address, std::uint64_t size, AtomicCounters& counters)
      : address_(static_cast<std::byte*>(address)), size_(size), counters_(counters) {}
  ~SystemMapping() override {
    if (size_ != 0) ::munmap(address_, static_cast<std::size_t>(blocks_in(size_) * kIoBlock));
  }
  SystemMapping(const SystemMapping&) = delete;
  SystemMapping& operator=(const SystemMapping&) = delete;

  std::span<const std::byte> bytes() const override { return {address_, static_cast<std::size_t>(size_)}; }

  void take(std::uint64_t offset, std::uint64_t size) const override {
    const BlockRange range = blocks_of(offset, size);
    for (std::uint64_t at = range.first; at < range.last; at += kPiece / kIoBlock) {
      const std::lock_guard lock(mutex_);
      const BlockRange piece = {at, std::min(range.last, at + kPiece / kIoBlock)};
      for (const BlockRange& fresh : held_.take(piece)) {
        try {
          fill(fresh);
        } catch (...) {
          for (const BlockRange& freed : held_.give({range.first, piece.last})) drop(freed);
          throw;
        }
        counters_.bytes_read += (fresh.last - fresh.first) * kIoBlock;
      }
    }
  }

  void give_back(std::uint64_t offset, std::uint64_t size) const noexcept override {
    try {
      const std::lock_guard lock(mutex_);
      for (const BlockRange& freed : held_.give(blocks_of(offset, size))) drop(freed);
    } catch (...) {  // no memory to say what is free: it stays
    }
  }

 protected:
  std::byte* address_of(std::uint64_t block) const { return address_ + block * kIoBlock; }
  static std::size_t bytes_of(BlockRange range) {
    return static_cast<std::size_t>((range.last - range.first) * kIoBlock);
  }
  std::uint64_t size() const { return size_; }

 private:
  virtual void fill(BlockRange) const {}
  virtual void drop(BlockRange range) const noexcept = 0;

  BlockRange blocks_of(std::uint64_t offset, std::uint64_t size) const {
    if (offset >= size_ || size == 0) return {};
    return {offset / kIoBlock, blocks_in(offset + std::min(size, size_ - offset))};
  }

  std::byte* address_;
  std::uint64_t size_;
  AtomicCounters& counters_;
  mutable std::mutex mutex_;
  mutable HeldBlocks held_;
};

class CachedMapping final : public SystemMapping {
 public:
  CachedMapping(void* address, std::uint64_t size, const Path& path, AtomicCounters& counters)
      : SystemMapping(address, size, counters),
        range_(address, static_cast<std::size_t>(size), path.string()) {}

  void read_ahead(std::uint64_t offset, std::uint64_t size) const override {
    advise(offset, size, MADV_WILLNEED);
  }

  void release(std::uint64_t offset, std::uint64_t size) const override {
    const std::uint64_t page = page_bytes();
    if (offset >= this->size()) return;
    const std::uint64_t end = offset + std::min(size, this->size() - offset);
    // Whole pages only: a neighbour may still need the rest. The last page of the file has no neighbour.
    const std::uint64_t first = (offset + page - 1) / page * page;
    const std::uint64_t last = end == this->size() ? end : end / page * page;
    if (last > first) ::madvise(address_of(0) + first, static_cast<std::size_t>(last - first), MADV_DONTNEED);
  }

 private:
  static std::uint64_t page_bytes() {
    static const std::uint64_t page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    return page;
  }

  void advise(std::uint64_t offset, std::uint64_t size, int advice) const {
    if (offset >= this->size()) return;
    const std::uint64_t first = offset / page_bytes() * page_bytes();
    const std::uint64_t end = offset + std::min(size, this->size() - offset);
    ::madvise(address_of(0) + first, static_cast<std::size_t>(end - first), advice);
  }

  void drop(BlockRange range) const noexcept override {
    release(range.first * kIoBlock, (range.last - range.first) * kIoBlock);
  }

  const MappedRange range_;  // gone while the addresses are still this file's
};

class DirectMapping final : public SystemMapping {
 public:
  DirectMapping(int fd, Path path, void* address, std::uint64_t size, AtomicCounters& counters)
      : SystemMapping(address, size, counters), fd_(fd), path_(std::move(path)) {}
  ~DirectMapping() override { ::close(fd_); }

  void release(std::uint64_t, std::uint64_t) const override {}  // leases alone say what stays
  bool in_memory() const override { return true; }

 private:
  void fill(BlockRange range) const override {
    protect(range, PROT_READ | PROT_WRITE);
    read_blocks(fd_, path_, range, address_of(range.first), size());
    protect(range, PROT_READ);
  }

  void protect(BlockRange range, int protection) const {
    if (::mprotect(address_of(range.first), bytes_of(range), protection) != 0)
      fail_errno(ErrorKind::kIo, path_, fmt::format("no memory for {} bytes of it", bytes_of(range)), errno);
  }

  void drop(BlockRange range) const noexcept override {
    ::madvise(address_of(range.first), bytes_of(range), MADV_DONTNEED);
    ::mprotect(address_of(range.first), bytes_of(range), PROT_NONE);
  }

  int fd_;
  Path path_;
};

// Pages are not closed while nobody holds them, as DirectMapping's are: a table of which single rows are held
// would be cut into more ranges than the kernel keeps for a process.
class MadeMapping final : public SystemMapping {
 public:
  MadeMapping(void* address, std::uint64_t size, AtomicCounters& counters, MakeBytes make)
      : SystemMapping(address, size, counters), make_(std::move(make)) {}

  void release(std::uint64_t, std::uint64_t) const override {}  // leases alone say what stays
  bool in_memory() const override { return true; }

 private:
  void fill(BlockRange range) const override {
    const std::uint64_t first = range.first * kIoBlock, last = std::min(range.last * kIoBlock, size());
    make_(first, {address_of(range.first), static_cast<std::size_t>(last - first)});
  }
  void drop(BlockRange range) const noexcept override {
    ::madvise(address_of(range.first), bytes_of(range), MADV_DONTNEED);
  }

  MakeBytes make_;
};

// Addresses of so many bytes, and no memory yet; MAP_FAILED where there are none.
void* addresses_for(std::uint64_t bytes, int protection) {
  void* const address = ::mmap(nullptr, blocks_in(bytes) * kIoBlock, protection,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  // Huge pages would hold more than what is leased.
  if (address != MAP_FAILED) ::madvise(address, blocks_in(bytes) * kIoBlock, MADV_NOHUGEPAGE);
  return address;
}

}  // namespace

std::unique_ptr<Mapping> map_cached(int fd, const Path& path, std::uint64_t bytes, AtomicCounters& counters) {
  if (bytes == 0) return std::make_unique<CachedMapping>(nullptr, 0, path, counters);
  void* address = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  if (address == MAP_FAILED)
    fail_errno(ErrorKind::kIo, path, fmt::format("cannot map {} bytes", bytes), errno);
  return std::make_unique<CachedMapping>(address, bytes, path, counters);
}

std::unique_ptr<Mapping> map_direct(int fd, const Path& path, std::uint64_t bytes, AtomicCounters& counters) {
  const int own = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) fail_errno(ErrorKind::kIo, path, "cannot be opened again", errno);
  if (bytes == 0) return std::make_unique<DirectMapping>(own, path, nullptr, 0, counters);
  void* const address = addresses_for(bytes, PROT_NONE);
  if (address == MAP_FAILED) {
    const int code = errno;
    ::close(own);
    fail_errno(ErrorKind::kIo, path, fmt::format("no addresses for {} bytes", bytes), code);
  }
  return std::make_unique<DirectMapping>(own, path, address, bytes, counters);
}

std::unique_ptr<Mapping> map_made(const Path& of, std::uint64_t bytes, MakeBytes make) {
  static AtomicCounters uncounted;  // what it is made of is counted where that is read
  void* const address = bytes == 0 ? nullptr : addresses_for(bytes, PROT_READ | PROT_WRITE);
  if (address == MAP_FAILED)
    fail_errno(ErrorKind::kIo, of, fmt::format("no addresses for {} bytes", bytes), errno);
  return std::make_unique<MadeMapping>(address, bytes, uncounted, std::move(make));
}

void read_direct(int fd, const Path& path, std::uint64_t offset, std::span<std::byte> into,
                 AtomicCounters& counters) {
  if (into.empty()) return;
  constexpr std::uint64_t kStep = std::uint64_t{1} << 20;
  const std::unique_ptr<std::byte, void (*)(void*)> buffer(
      static_cast<std::byte*>(std::aligned_alloc(kIoBlock, kStep)), std::free);
  if (!buffer) fail_errno(ErrorKind::kIo, path, "no memory for a block of it", ENOMEM);
  const std::uint64_t end = offset + into.size();
  for (std::uint64_t at = offset / kIoBlock * kIoBlock; at < end; at += kStep) {
    const BlockRange blocks = {at / kIoBlock, std::min(blocks_in(end), (at + kStep) / kIoBlock)};
    read_blocks(fd, path, blocks, buffer.get(), end);
    counters.bytes_read += (blocks.last - blocks.first) * kIoBlock;
    const std::uint64_t from = std::max(at, offset), to = std::min(end, blocks.last * kIoBlock);
    std::memcpy(into.data() + (from - offset), buffer.get() + (from - at),
                static_cast<std::size_t>(to - from));
  }
}

}  // namespace llmq

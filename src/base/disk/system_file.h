// A file of the POSIX system, and what its errors say: every one names the path, and a full disk names the
// bytes needed and the bytes free.
#pragma once
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/disk/mapping.h"
#include "base/error.h"
#include "base/io.h"

namespace llmq {

[[noreturn]] void fail_errno(ErrorKind kind, const Path& path, const std::string& doing, int code);
std::uint64_t free_bytes_of(const struct statvfs& system);
FileStamp stamp_of(const struct stat& status);

// Reads and writes loop over short counts and EINTR.
class SystemFile final : public File {
 public:
  SystemFile(int fd, Path path, AtomicCounters& counters, Reading reading = Reading::kCached)
      : fd_(fd), path_(std::move(path)), counters_(counters), reading_(reading) {}
  ~SystemFile() override;
  SystemFile(const SystemFile&) = delete;
  SystemFile& operator=(const SystemFile&) = delete;

  std::uint64_t size() override;
  FileStamp stamp() override;
  void read_at(std::uint64_t offset, std::span<std::byte> into) override;
  void write_at(std::uint64_t offset, std::span<const std::byte> from) override;
  void reserve(std::uint64_t size) override;
  void sync() override;
  std::unique_ptr<Mapping> map() override;

 private:
  int fd_;
  Path path_;
  AtomicCounters& counters_;
  Reading reading_;
};

}  // namespace llmq

#include "base/disk/system_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace llmq {
namespace {

// What the system could not read, because a mapped file ended: reading it here says which file
// (base/disk/mapped_files.h).
void look_at(std::span<const std::byte> bytes) {
  for (const std::byte& byte : bytes) static_cast<void>(*static_cast<const volatile std::byte*>(&byte));
}

bool out_of_room(int code) { return code == ENOSPC || code == EDQUOT; }

[[noreturn]] void fail_no_room(const Path& path, int fd, std::uint64_t needed, int code) {
  struct statvfs system {};
  const std::string reason = code == EDQUOT ? "the disk quota is spent" : "no room on the disk";
  const std::string room =
      ::fstatvfs(fd, &system) == 0 ? fmt::format(", {} are free", free_bytes_of(system)) : std::string();
  fail(ErrorKind::kIo, {fmt::format("{}: {} bytes are needed{}", reason, needed, room),
                        path.string(),
                        {},
                        "free some space or choose another output directory"});
}

std::int64_t nanoseconds(const struct timespec& time) {
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

void fail_errno(ErrorKind kind, const Path& path, const std::string& doing, int code) {
  fail(kind, {doing + ": " + std::strerror(code), path.string(), {}, {}});
}

std::uint64_t free_bytes_of(const struct statvfs& system) {
  return static_cast<std::uint64_t>(system.f_bavail) * system.f_frsize;
}

FileStamp stamp_of(const struct stat& status) {
  const FileKind kind = S_ISREG(status.st_mode)   ? FileKind::kRegular
                        : S_ISDIR(status.st_mode) ? FileKind::kDirectory
                        : S_ISLNK(status.st_mode) ? FileKind::kSymlink
                                                  : FileKind::kOther;
  return {kind,
          static_cast<std::uint64_t>(status.st_dev),
          static_cast<std::uint64_t>(status.st_ino),
          static_cast<std::uint64_t>(status.st_size),
          nanoseconds(status.st_mtim),
          nanoseconds(status.st_ctim)};
}

SystemFile::~SystemFile() { ::close(fd_); }

std::uint64_t SystemFile::size() {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) fail_errno(ErrorKind::kIo, path_, "cannot read its size", errno);
  return static_cast<std::uint64_t>(status.st_size);
}

FileStamp SystemFile::stamp() {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) fail_errno(ErrorKind::kIo, path_, "cannot be examined", errno);
  return stamp_of(status);
}

void SystemFile::read_at(std::uint64_t offset, std::span<std::byte> into) {
  if (reading_ == Reading::kDirect) return read_direct(fd_, path_, offset, into, counters_);
  while (!into.empty()) {
    const ssize_t got = ::pread(fd_, into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(ErrorKind::kIo, path_, fmt::format("cannot read at byte {}", offset), errno);
    if (got == 0)
      fail(ErrorKind::kIo, {fmt::format("ends at byte {}, {} more were expected", offset, into.size()),
                            path_.string(),
                            {},
                            {}});
    counters_.bytes_read += static_cast<std::uint64_t>(got);
    offset += static_cast<std::uint64_t>(got);
    into = into.subspan(static_cast<std::size_t>(got));
  }
}

void SystemFile::write_at(std::uint64_t offset, std::span<const std::byte> from) {
  while (!from.empty()) {
    const ssize_t put = ::pwrite(fd_, from.data(), from.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && out_of_room(errno)) fail_no_room(path_, fd_, from.size(), errno);
    if (put < 0 && errno == EFAULT) look_at(from);
    if (put < 0) fail_errno(ErrorKind::kIo, path_, fmt::format("cannot write at byte {}", offset), errno);
    counters_.bytes_written += static_cast<std::uint64_t>(put);
    offset += static_cast<std::uint64_t>(put);
    from = from.subspan(static_cast<std::size_t>(put));
  }
}

void SystemFile::reserve(std::uint64_t size) {
  if (size == 0) return;
  int code = 0;
  do {
    code = ::posix_fallocate(fd_, 0, static_cast<off_t>(size));
  } while (code == EINTR);
  if (code == 0) return;
  if (out_of_room(code)) fail_no_room(path_, fd_, size, code);
  fail_errno(ErrorKind::kIo, path_, fmt::format("cannot reserve {} bytes", size), code);
}

void SystemFile::sync() {
  if (::fdatasync(fd_) != 0) {
    if (out_of_room(errno)) fail_no_room(path_, fd_, size(), errno);
    fail_errno(ErrorKind::kIo, path_, "cannot be written through to the disk", errno);
  }
}

std::unique_ptr<Mapping> SystemFile::map() {
  return (reading_ == Reading::kDirect ? map_direct : map_cached)(fd_, path_, size(), counters_);
}

}  // namespace llmq

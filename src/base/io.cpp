// The POSIX implementation of Io, and two helpers over any Io.
//
// Reads and writes loop over short counts and EINTR. Opening never blocks on a pipe or a device (O_NONBLOCK,
// then a check for a regular file). Every error names the path, and a full disk names the bytes needed and
// the bytes free.
#include "base/io.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/mapping.h"
#include "base/parent_path.h"

namespace llmq {
namespace {

// What the system could not read, because a mapped file ended: reading it here says which file
// (base/mapped_files.h).
void look_at(std::span<const std::byte> bytes) {
  for (const std::byte& byte : bytes) static_cast<void>(*static_cast<const volatile std::byte*>(&byte));
}

[[noreturn]] void fail_errno(ErrorKind kind, const Path& path, const std::string& doing, int code) {
  fail(kind, ErrorDetail{doing + ": " + std::strerror(code), path.string(), {}, {}});
}

std::uint64_t free_bytes_of(const struct statvfs& system) {
  return static_cast<std::uint64_t>(system.f_bavail) * system.f_frsize;
}

bool out_of_room(int code) { return code == ENOSPC || code == EDQUOT; }

[[noreturn]] void fail_no_room(const Path& path, int fd, std::uint64_t needed, int code) {
  struct statvfs system {};
  const std::string reason = code == EDQUOT ? "the disk quota is spent" : "no room on the disk";
  const std::string room =
      ::fstatvfs(fd, &system) == 0 ? fmt::format(", {} are free", free_bytes_of(system)) : std::string();
  fail(ErrorKind::kIo, ErrorDetail{fmt::format("{}: {} bytes are needed{}", reason, needed, room),
                                   path.string(),
                                   {},
                                   "free some space or choose another output directory"});
}

std::int64_t nanoseconds(const struct timespec& time) {
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
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

class SystemFile final : public File {
 public:
  SystemFile(int fd, Path path, AtomicCounters& counters, Reading reading = Reading::kCached)
      : fd_(fd), path_(std::move(path)), counters_(counters), reading_(reading) {}
  ~SystemFile() override { ::close(fd_); }
  SystemFile(const SystemFile&) = delete;
  SystemFile& operator=(const SystemFile&) = delete;

  std::uint64_t size() override {
    struct stat status {};
    if (::fstat(fd_, &status) != 0) fail_errno(ErrorKind::kIo, path_, "cannot read its size", errno);
    return static_cast<std::uint64_t>(status.st_size);
  }

  FileStamp stamp() override {
    struct stat status {};
    if (::fstat(fd_, &status) != 0) fail_errno(ErrorKind::kIo, path_, "cannot be examined", errno);
    return stamp_of(status);
  }

  void read_at(std::uint64_t offset, std::span<std::byte> into) override {
    if (reading_ == Reading::kDirect) return read_direct(fd_, path_, offset, into, counters_);
    while (!into.empty()) {
      const ssize_t got = ::pread(fd_, into.data(), into.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail_errno(ErrorKind::kIo, path_, fmt::format("cannot read at byte {}", offset), errno);
      if (got == 0)
        fail(ErrorKind::kIo,
             ErrorDetail{fmt::format("ends at byte {}, {} more were expected", offset, into.size()),
                         path_.string(),
                         {},
                         {}});
      counters_.bytes_read += static_cast<std::uint64_t>(got);
      offset += static_cast<std::uint64_t>(got);
      into = into.subspan(static_cast<std::size_t>(got));
    }
  }

  void write_at(std::uint64_t offset, std::span<const std::byte> from) override {
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

  void reserve(std::uint64_t size) override {
    if (size == 0) return;
    int code = 0;
    do {
      code = ::posix_fallocate(fd_, 0, static_cast<off_t>(size));
    } while (code == EINTR);
    if (code == 0) return;
    if (out_of_room(code)) fail_no_room(path_, fd_, size, code);
    fail_errno(ErrorKind::kIo, path_, fmt::format("cannot reserve {} bytes", size), code);
  }

  void sync() override {
    if (::fdatasync(fd_) != 0) {
      if (out_of_room(errno)) fail_no_room(path_, fd_, size(), errno);
      fail_errno(ErrorKind::kIo, path_, "cannot be written through to the disk", errno);
    }
  }

  std::unique_ptr<Mapping> map() override {
    return (reading_ == Reading::kDirect ? map_direct : map_cached)(fd_, path_, size(), counters_);
  }

 private:
  int fd_;
  Path path_;
  AtomicCounters& counters_;
  Reading reading_;
};

// flock(): it goes with the process, so a lock that is held has a living holder. The name is removed while
// the lock is held; whoever opened the file before that sees that it has no name any more and starts again.
class SystemLock final : public NameLock {
 public:
  SystemLock(std::unique_ptr<File> file, Path path) : file_(std::move(file)), path_(std::move(path)) {}
  ~SystemLock() override { ::unlink(path_.c_str()); }
  SystemLock(const SystemLock&) = delete;
  SystemLock& operator=(const SystemLock&) = delete;

 private:
  std::unique_ptr<File> file_;  // closed last
  Path path_;
};

// Whether `path` still names the open file.
bool names_file(const Path& path, int fd) {
  struct stat named {
  }, opened{};
  return ::lstat(path.c_str(), &named) == 0 && ::fstat(fd, &opened) == 0 && named.st_ino == opened.st_ino &&
         named.st_dev == opened.st_dev;
}

std::string first_bytes(int fd) {
  std::string text(1024, '\0');
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return text;
}

class SystemIo final : public Io {
 public:
  explicit SystemIo(Reading reading = Reading::kCached) : reading_(reading) {}

  std::unique_ptr<File> open(const Path& path) override {
    const bool direct = reading_ == Reading::kDirect;
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | (direct ? O_DIRECT : 0));
    if (fd < 0) {
      const int code = errno;
      if (direct && code == EINVAL)
        refuse_direct(path, "its file system has no reading past the page cache (O_DIRECT)");
      if (code == ENOENT || code == ENOTDIR)
        fail(ErrorKind::kBadInput, ErrorDetail{"does not exist", path.string(), {}, {}});
      fail_errno(
          code == EACCES || code == ELOOP || code == ENAMETOOLONG ? ErrorKind::kBadInput : ErrorKind::kIo,
          path, "cannot be opened", code);
    }
    auto file = std::make_unique<SystemFile>(fd, path, counters_, reading_);
    struct stat status {};
    if (::fstat(fd, &status) != 0) fail_errno(ErrorKind::kIo, path, "cannot be examined", errno);
    if (S_ISDIR(status.st_mode))
      fail(ErrorKind::kBadInput, ErrorDetail{"is a directory, a file was expected", path.string(), {}, {}});
    if (!S_ISREG(status.st_mode))
      fail(ErrorKind::kBadInput, ErrorDetail{"is not a regular file (a pipe, socket or device)",
                                             path.string(),
                                             {},
                                             "copy it to a file first"});
    return file;
  }

  std::unique_ptr<File> create(const Path& path) override {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd >= 0) return std::make_unique<SystemFile>(fd, path, counters_);
    const int code = errno;
    if (code == EEXIST)
      fail(ErrorKind::kBadInput, ErrorDetail{"exists already and is not overwritten",
                                             path.string(),
                                             {},
                                             "remove it or choose another output"});
    fail_errno(ErrorKind::kIo, path, "cannot be created", code);
  }

  std::unique_ptr<File> create_nameless(const Path& directory) override {
    const Path place = directory.empty() ? Path(".") : directory;
    const int fd = ::open(place.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0) return std::make_unique<SystemFile>(fd, place / "(a file without a name)", counters_);
    const int code = errno;
    if (code != EOPNOTSUPP && code != EISDIR && code != EINVAL)
      fail_errno(ErrorKind::kIo, place, "a file without a name cannot be created there", code);
    // A file system that has none: it loses its name before its first byte is written.
    static std::atomic<int> count{0};
    const Path path = place / fmt::format(".llmq-nameless-{}-{}", ::getpid(), count++);
    std::unique_ptr<File> file = create(path);
    remove(path);
    return file;
  }

  std::unique_ptr<File> open_to_write(const Path& path) override {
    const int fd = ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
      fail_errno(errno == ENOENT ? ErrorKind::kBadInput : ErrorKind::kIo, path, "cannot be opened to write",
                 errno);
    auto file = std::make_unique<SystemFile>(fd, path, counters_, reading_);
    struct stat status {};
    if (::fstat(fd, &status) != 0) fail_errno(ErrorKind::kIo, path, "cannot be examined", errno);
    if (!S_ISREG(status.st_mode))
      fail(ErrorKind::kIo, ErrorDetail{"is not a regular file", path.string(), {}, {}});
    return file;
  }

  bool exists(const Path& path) override {
    struct stat status {};
    return ::lstat(path.c_str(), &status) == 0;
  }

  bool is_directory(const Path& path) override {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  }

  FileStamp stamp(const Path& path) override {
    struct stat status {};
    if (::lstat(path.c_str(), &status) == 0) return stamp_of(status);
    if (errno == ENOENT || errno == ENOTDIR) return {};
    fail_errno(ErrorKind::kIo, path, "cannot be examined", errno);
  }

  std::vector<std::string> list(const Path& directory) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(directory.c_str()), &::closedir);
    if (!stream) {
      const bool wrong_path = errno == ENOENT || errno == ENOTDIR;
      fail_errno(wrong_path ? ErrorKind::kBadInput : ErrorKind::kIo, directory, "cannot be listed", errno);
    }
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(stream.get())) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      errno = 0;
    }
    if (errno != 0) fail_errno(ErrorKind::kIo, directory, "cannot be listed", errno);
    std::sort(names.begin(), names.end());
    return names;
  }

  void make_directory(const Path& path) override {
    Path prefix;
    for (const Path& part : path) {
      prefix /= part;
      if (::mkdir(prefix.c_str(), 0755) == 0) continue;
      const int code = errno == ENOTDIR ? EEXIST : errno;
      if (is_directory(prefix)) continue;  // which changes errno
      if (code == EEXIST)
        fail(ErrorKind::kBadInput,
             ErrorDetail{"is not a directory", prefix.string(), {}, "choose another output"});
      fail_errno(ErrorKind::kIo, prefix, "cannot be created as a directory", code);
    }
  }

  void rename(const Path& from, const Path& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0)
      fail_errno(ErrorKind::kIo, from, fmt::format("cannot be renamed to '{}'", to.string()), errno);
  }

  bool exchange(const Path& a, const Path& b) override {
    if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
    if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) return false;
    fail_errno(ErrorKind::kIo, a, fmt::format("cannot change places with '{}'", b.string()), errno);
  }

  void make_link(const Path& target, const Path& link) override {
    if (::symlink(target.c_str(), link.c_str()) != 0)
      fail_errno(ErrorKind::kIo, link, "cannot be created as a link", errno);
  }

  std::string read_link(const Path& link) override {
    std::string target(4096, '\0');
    const ssize_t got = ::readlink(link.c_str(), target.data(), target.size());
    if (got < 0 && errno != EINVAL && errno != ENOENT && errno != ENOTDIR)
      fail_errno(ErrorKind::kIo, link, "cannot be read as a link", errno);
    target.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return target;
  }

  std::unique_ptr<NameLock> lock(const Path& path, std::string_view self, std::string& holder) override {
    for (;;) {
      const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
      if (fd < 0) fail_errno(ErrorKind::kIo, path, "cannot be created as a lock", errno);
      auto file = std::make_unique<SystemFile>(fd, path, counters_);
      if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
        const int code = errno;
        if (code == EINTR) continue;
        if (code == EWOULDBLOCK) {
          holder = first_bytes(fd);
          return nullptr;
        }
        if (code != ENOSYS && code != EOPNOTSUPP && code != ENOLCK)
          fail_errno(ErrorKind::kIo, path, "cannot be locked", code);
        Log::get().warn(path.string() + ": the file system has no locks; nothing keeps a second job away");
      }
      if (!names_file(path, fd)) continue;  // its last holder was just removing it
      if (::ftruncate(fd, 0) != 0) fail_errno(ErrorKind::kIo, path, "cannot be written", errno);
      file->write_at(0, std::as_bytes(std::span(self)));
      return std::make_unique<SystemLock>(std::move(file), path);
    }
  }

  void remove(const Path& path) override {
    if (::remove(path.c_str()) != 0 && errno != ENOENT)
      fail_errno(ErrorKind::kIo, path, "cannot be removed", errno);
  }

  void sync_directory(const Path& directory) override {
    const Path place = directory.empty() ? Path(".") : directory;
    const int fd = ::open(place.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) fail_errno(ErrorKind::kIo, place, "cannot be opened as a directory", errno);
    const int code = ::fsync(fd) == 0 ? 0 : errno;
    ::close(fd);
    // Some file systems cannot sync a directory and say EINVAL: there is nothing more to do.
    if (code != 0 && code != EINVAL)
      fail_errno(ErrorKind::kIo, place, "cannot be written through to the disk", code);
  }

  std::uint64_t free_bytes(const Path& directory) override {
    struct statvfs system {};
    Path place = directory.empty() ? Path(".") : directory;
    while (::statvfs(place.c_str(), &system) != 0) {
      if (errno == EINTR) continue;
      const Path parent = parent_of(place);
      if (errno != ENOENT || parent == place)
        fail_errno(ErrorKind::kIo, directory, "cannot tell the free space", errno);
      place = parent;
    }
    return free_bytes_of(system);
  }

  IoCounters counters() const override { return {counters_.bytes_read, counters_.bytes_written}; }

 private:
  [[noreturn]] static void refuse_direct(const Path& path, const char* why) {
    fail(ErrorKind::kUnsupported, ErrorDetail{why, path.string(), {}, "read it through the page cache"});
  }

  Reading reading_;
  AtomicCounters counters_;
};

}  // namespace

Io& system_io() {
  static SystemIo io;
  return io;
}

std::unique_ptr<Io> make_system_io(Reading reading) {
  if (reading == Reading::kDirect && ::sysconf(_SC_PAGESIZE) != static_cast<long>(kIoBlock))
    fail(ErrorKind::kUnsupported, "reading past the page cache is for machines with pages of {} bytes",
         kIoBlock);
  return std::make_unique<SystemIo>(reading);
}

std::string read_text(Io& io, const Path& path, std::uint64_t limit) {
  const std::unique_ptr<File> file = io.open(path);
  const std::uint64_t size = file->size();
  if (size > limit)
    fail(ErrorKind::kBadInput,
         ErrorDetail{
             fmt::format("has {} bytes, more than the {} allowed here", size, limit), path.string(), {}, {}});
  std::string text(static_cast<std::size_t>(size), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_text_atomically(Io& io, const Path& path, std::string_view text) {
  const Path partial = path.string() + ".partial-" + std::to_string(::getpid());
  io.remove(partial);  // of an earlier failure in this process
  try {
    {
      const std::unique_ptr<File> file = io.create(partial);
      file->write_at(0, std::as_bytes(std::span(text)));
      file->sync();
    }
    io.rename(partial, path);
    io.sync_directory(path.parent_path());
  } catch (...) {
    try {
      io.remove(partial);
    } catch (const Error&) {  // the first error is the one to report
    }
    throw;
  }
}

}  // namespace llmq

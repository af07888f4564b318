// The POSIX implementation of Io.
//
// Opening never blocks on a pipe or a device (O_NONBLOCK, then a check for a regular file).
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/disk/mapping.h"
#include "base/disk/system_file.h"
#include "base/error.h"
#include "base/io.h"
#include "base/log.h"
#include "base/new_name.h"
#include "base/parent_path.h"

namespace llmq {
namespace {

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
        fail(ErrorKind::kBadInput, {"does not exist", path.string(), {}, {}});
      fail_errno(
          code == EACCES || code == ELOOP || code == ENAMETOOLONG ? ErrorKind::kBadInput : ErrorKind::kIo,
          path, "cannot be opened", code);
    }
    auto file = std::make_unique<SystemFile>(fd, path, counters_, reading_);
    struct stat status {};
    if (::fstat(fd, &status) != 0) fail_errno(ErrorKind::kIo, path, "cannot be examined", errno);
    if (S_ISDIR(status.st_mode))
      fail(ErrorKind::kBadInput, {"is a directory, a file was expected", path.string(), {}, {}});
    if (!S_ISREG(status.st_mode))
      fail(
          ErrorKind::kBadInput,
          {"is not a regular file (a pipe, socket or device)", path.string(), {}, "copy it to a file first"});
    return file;
  }

  std::unique_ptr<File> create(const Path& path) override {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd >= 0) return std::make_unique<SystemFile>(fd, path, counters_);
    const int code = errno;
    if (code == EEXIST)
      fail(
          ErrorKind::kBadInput,
          {"exists already and is not overwritten", path.string(), {}, "remove it or choose another output"});
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
    // Other machines may do so in the same directory, by processes of the same number.
    const Path path = place / new_name(".llmq-nameless-");
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
    if (!S_ISREG(status.st_mode)) fail(ErrorKind::kIo, {"is not a regular file", path.string(), {}, {}});
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
        fail(ErrorKind::kBadInput, {"is not a directory", prefix.string(), {}, "choose another output"});
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
    fail(ErrorKind::kUnsupported, {why, path.string(), {}, "read it through the page cache"});
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

}  // namespace llmq

// A preloaded library (LD_PRELOAD) between a program and the disk: it counts calls by what they do and to
// which file, and makes one of them fail, fall short, or be the process's last.
//
//   FAULTY_DISK_UNDER   directories, separated by ':'; calls on files elsewhere are not looked at
//   FAULTY_DISK_LOG     a file that gets a line "<call> <file>" for each call, "<call> <file> FAULT" for the
//                       chosen one
//   FAULTY_DISK_FAULT   "<how> <number> <call> <file>": the number-th such call (from 1); <how> is an errno
//                       (ENOSPC, EIO), short (half of the bytes), kill (before the call), torn (half of the
//                       bytes, then killed), cut (before the call the file FAULTY_DISK_CUT loses all but its
//                       first 4 KiB), or an errno with '+' behind it: that call and every one after it that
//                       changes the disk
//
// <call> is one of the words below; <file> is the path below the directory, where the process's number reads
// PID; of a file
//                       without a name the directory's and "/#". The call
// "any" with the file "*" counts every call that changes the disk.
// Calls to libc are seen, system calls made by themselves are not: llmq makes none.
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>

namespace {

constexpr size_t kPath = 4096;

enum class How { kPass, kError, kShort, kTorn };

// What a call shall do, for one that is looked at.
struct Verdict {
  How how = How::kPass;
  int error = 0;
};

// What is planned, read from the environment at the first call.
struct Fault {
  char how[16] = "", call[16] = "", file[512] = "";
  long number = 0;
  int error = 0;
  bool from_then_on = false;
};

template <typename Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

Fault read_fault() {
  Fault fault;
  const char* text = getenv("FAULTY_DISK_FAULT");
  if (text == nullptr ||
      sscanf(text, "%15s %ld %15s %511[^\n]", fault.how, &fault.number, fault.call, fault.file) != 4)
    return {};
  const size_t length = strlen(fault.how);
  if (length > 0 && fault.how[length - 1] == '+') {
    fault.from_then_on = true;
    fault.how[length - 1] = 0;
  }
  if (strcmp(fault.how, "EIO") == 0) fault.error = EIO;
  if (strcmp(fault.how, "ENOSPC") == 0) fault.error = ENOSPC;
  return fault;
}

const Fault& fault() {
  static const Fault read = read_fault();
  return read;
}

// The part of `path` below one of the directories, with PID for the process's number; false for other files.
bool relative(const char* path, char* out) {
  const char* under = getenv("FAULTY_DISK_UNDER");
  char whole[kPath];
  if (under == nullptr) return false;
  if (path[0] != '/') {
    char here[kPath];
    if (getcwd(here, sizeof here) == nullptr) return false;
    if (snprintf(whole, sizeof whole, "%s/%s", here, path) >= static_cast<int>(sizeof whole)) return false;
    path = whole;
  }
  for (const char* directory = under; *directory != 0;) {
    const size_t length = strcspn(directory, ":");
    if (strncmp(path, directory, length) == 0 && path[length] == '/') {
      char pid[32];
      const int digits = snprintf(pid, sizeof pid, "%d", static_cast<int>(getpid()));
      size_t at = 0;
      const char* rest = path + length + 1;
      if (const char* deleted = strstr(rest, " (deleted)")) {
        snprintf(whole, sizeof whole, "%.*s", static_cast<int>(deleted - rest), rest);
        rest = whole;
      }
      while (*rest != 0 && at + 4 < kPath) {
        if (rest[0] == '/' && rest[1] == '#') {  // a file without a name: /#<inode>
          memcpy(out + at, "/#", 2);
          at += 2;
          rest += 2 + strspn(rest + 2, "0123456789");
        } else if (strncmp(rest, pid, static_cast<size_t>(digits)) == 0) {
          memcpy(out + at, "PID", 3);
          at += 3;
          rest += digits;
        } else {
          out[at++] = *rest++;
        }
      }
      out[at] = 0;
      return true;
    }
    directory += length + (directory[length] == ':' ? 1 : 0);
  }
  return false;
}

void note(const char* call, const char* file, bool faulty) {
  static const int log = [] {
    const char* path = getenv("FAULTY_DISK_LOG");
    return path == nullptr ? -1
                           : static_cast<int>(syscall(SYS_openat, AT_FDCWD, path,
                                                      O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  }();
  char line[kPath + 64];
  const int length = snprintf(line, sizeof line, "%s %s%s\n", call, file, faulty ? " FAULT" : "");
  if (log >= 0) syscall(SYS_write, log, line, static_cast<size_t>(length));
}

bool changes(const char* call) {
  for (const char* looking : {"open", "read", "map", "list"})
    if (strcmp(call, looking) == 0) return false;
  return true;
}

[[noreturn]] void die() {
  for (;;) syscall(SYS_kill, getpid(), SIGKILL);
}

Verdict look(const char* call, const char* path) {
  char file[kPath];
  if (path == nullptr || !relative(path, file)) return {};
  const Fault& planned = fault();
  static std::atomic<long> seen{0};
  const bool every = strcmp(planned.call, "any") == 0;
  const bool counted =
      planned.number > 0 &&
      (every ? changes(call) : strcmp(planned.call, call) == 0 && strcmp(planned.file, file) == 0);
  // After the chosen call, one that goes on failing takes in every call that changes the disk.
  const bool after = planned.from_then_on && seen >= planned.number && changes(call);
  const long number = counted ? ++seen : seen.load();
  const bool faulty = after || (counted && number == planned.number);
  note(call, file, faulty);
  if (!faulty) return {};
  if (strcmp(planned.how, "kill") == 0) die();
  if (strcmp(planned.how, "cut") == 0) {
    syscall(SYS_truncate, getenv("FAULTY_DISK_CUT"), 4096L);
    return {};
  }
  if (strcmp(planned.how, "short") == 0) return {How::kShort, 0};
  if (strcmp(planned.how, "torn") == 0) return {How::kTorn, 0};
  return {How::kError, planned.error};
}

Verdict look(const char* call, int fd) {
  char link[64], path[kPath];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
  if (length <= 0 || path[0] != '/') return {};
  path[length] = 0;
  return look(call, path);
}

// Directory descriptors are not resolved: llmq and libstdc++ pass AT_FDCWD or absolute paths.
Verdict look_at(const char* call, int directory, const char* path) {
  return directory == AT_FDCWD || path[0] == '/' ? look(call, path) : Verdict{};
}

int refused(const Verdict& verdict) {
  errno = verdict.error;
  return -1;
}

// A transfer of `count` bytes: fails, is halved, or is halved and the last thing the process does.
template <typename Transfer>
ssize_t transferred(const char* call, int fd, size_t count, const Transfer& transfer) {
  const Verdict verdict = look(call, fd);
  if (verdict.how == How::kError) return refused(verdict);
  const ssize_t done = transfer(verdict.how == How::kPass ? count : count / 2 + (count == 1 ? 1 : 0));
  if (verdict.how == How::kTorn) die();
  return done;
}

template <typename Call>
int attempted(const Verdict& verdict, const Call& call) {
  if (verdict.how == How::kError) return refused(verdict);
  if (verdict.how == How::kTorn) die();
  return call();
}

const char* opening(int flags) { return (flags & O_ACCMODE) == O_RDONLY ? "open" : "create"; }

mode_t mode_of(int flags, va_list more) {
  return (flags & O_CREAT) != 0 ? static_cast<mode_t>(va_arg(more, int)) : 0;
}

}  // namespace

#define WITH_MODE(flags)                    \
  va_list more;                             \
  va_start(more, flags);                    \
  const mode_t mode = mode_of(flags, more); \
  va_end(more)

extern "C" {

int open(const char* path, int flags, ...) {
  WITH_MODE(flags);
  return attempted(look(opening(flags), path),
                   [&] { return real<int (*)(const char*, int, ...)>("open")(path, flags, mode); });
}
int open64(const char* path, int flags, ...) {
  WITH_MODE(flags);
  return attempted(look(opening(flags), path),
                   [&] { return real<int (*)(const char*, int, ...)>("open64")(path, flags, mode); });
}
int openat(int directory, const char* path, int flags, ...) {
  WITH_MODE(flags);
  return attempted(look_at(opening(flags), directory, path), [&] {
    return real<int (*)(int, const char*, int, ...)>("openat")(directory, path, flags, mode);
  });
}

ssize_t read(int fd, void* into, size_t count) {
  return transferred("read", fd, count,
                     [&](size_t n) { return real<ssize_t (*)(int, void*, size_t)>("read")(fd, into, n); });
}
ssize_t pread(int fd, void* into, size_t count, off_t at) {
  return transferred("read", fd, count, [&](size_t n) {
    return real<ssize_t (*)(int, void*, size_t, off_t)>("pread")(fd, into, n, at);
  });
}
ssize_t pread64(int fd, void* into, size_t count, off64_t at) {
  return transferred("read", fd, count, [&](size_t n) {
    return real<ssize_t (*)(int, void*, size_t, off64_t)>("pread64")(fd, into, n, at);
  });
}
ssize_t write(int fd, const void* from, size_t count) {
  return transferred("write", fd, count, [&](size_t n) {
    return real<ssize_t (*)(int, const void*, size_t)>("write")(fd, from, n);
  });
}
ssize_t pwrite(int fd, const void* from, size_t count, off_t at) {
  return transferred("write", fd, count, [&](size_t n) {
    return real<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite")(fd, from, n, at);
  });
}
ssize_t pwrite64(int fd, const void* from, size_t count, off64_t at) {
  return transferred("write", fd, count, [&](size_t n) {
    return real<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64")(fd, from, n, at);
  });
}
ssize_t writev(int fd, const struct iovec* from, int count) {
  return attempted(look("write", fd), [&] {
    return static_cast<int>(real<ssize_t (*)(int, const struct iovec*, int)>("writev")(fd, from, count));
  });
}
ssize_t copy_file_range(int in, off64_t* in_at, int out, off64_t* out_at, size_t count, unsigned flags) {
  return transferred("write", out, count, [&](size_t n) {
    return real<ssize_t (*)(int, off64_t*, int, off64_t*, size_t, unsigned)>("copy_file_range")(
        in, in_at, out, out_at, n, flags);
  });
}
ssize_t sendfile(int out, int in, off_t* at, size_t count) {
  return transferred("write", out, count, [&](size_t n) {
    return real<ssize_t (*)(int, int, off_t*, size_t)>("sendfile")(out, in, at, n);
  });
}

// A kill loses nothing that was not synced, so syncing would only take time.
int fsync(int fd) {
  return attempted(look("sync", fd), [] { return 0; });
}
int fdatasync(int fd) {
  return attempted(look("sync", fd), [] { return 0; });
}
int ftruncate(int fd, off_t size) noexcept {
  return attempted(look("truncate", fd), [&] { return real<int (*)(int, off_t)>("ftruncate")(fd, size); });
}
int ftruncate64(int fd, off64_t size) noexcept {
  return attempted(look("truncate", fd),
                   [&] { return real<int (*)(int, off64_t)>("ftruncate64")(fd, size); });
}
int fallocate(int fd, int mode, off_t at, off_t size) {
  return attempted(look("reserve", fd),
                   [&] { return real<int (*)(int, int, off_t, off_t)>("fallocate")(fd, mode, at, size); });
}
int posix_fallocate(int fd, off_t at, off_t size) {  // returns the error
  const Verdict verdict = look("reserve", fd);
  return verdict.how == How::kError ? verdict.error : attempted(verdict, [&] {
    return real<int (*)(int, off_t, off_t)>("posix_fallocate")(fd, at, size);
  });
}
int posix_fallocate64(int fd, off64_t at, off64_t size) {
  const Verdict verdict = look("reserve", fd);
  return verdict.how == How::kError ? verdict.error : attempted(verdict, [&] {
    return real<int (*)(int, off64_t, off64_t)>("posix_fallocate64")(fd, at, size);
  });
}
int flock(int fd, int operation) noexcept {
  return attempted(look("lock", fd), [&] { return real<int (*)(int, int)>("flock")(fd, operation); });
}

int rename(const char* from, const char* to) noexcept {
  return attempted(look("rename", to),
                   [&] { return real<int (*)(const char*, const char*)>("rename")(from, to); });
}
int renameat(int a, const char* from, int b, const char* to) noexcept {
  return attempted(look_at("rename", b, to), [&] {
    return real<int (*)(int, const char*, int, const char*)>("renameat")(a, from, b, to);
  });
}
int renameat2(int a, const char* from, int b, const char* to, unsigned flags) noexcept {
  return attempted(look_at("rename", b, to), [&] {
    return real<int (*)(int, const char*, int, const char*, unsigned)>("renameat2")(a, from, b, to, flags);
  });
}
int symlink(const char* target, const char* path) noexcept {
  return attempted(look("link", path),
                   [&] { return real<int (*)(const char*, const char*)>("symlink")(target, path); });
}
int mkdir(const char* path, mode_t mode) noexcept {
  const bool nothing_to_do = access(path, F_OK) == 0;
  return attempted(nothing_to_do ? Verdict{} : look("mkdir", path),
                   [&] { return real<int (*)(const char*, mode_t)>("mkdir")(path, mode); });
}
int unlink(const char* path) noexcept {
  return attempted(look("remove", path), [&] { return real<int (*)(const char*)>("unlink")(path); });
}
int rmdir(const char* path) noexcept {
  return attempted(look("remove", path), [&] { return real<int (*)(const char*)>("rmdir")(path); });
}
int remove(const char* path) noexcept {
  return attempted(look("remove", path), [&] { return real<int (*)(const char*)>("remove")(path); });
}

DIR* opendir(const char* path) {
  const Verdict verdict = look("list", path);
  if (verdict.how == How::kError) return errno = verdict.error, nullptr;
  return real<DIR* (*)(const char*)>("opendir")(path);
}
void* mmap(void* address, size_t size, int protection, int flags, int fd, off_t at) noexcept {
  const Verdict verdict = fd < 0 ? Verdict{} : look("map", fd);
  if (verdict.how == How::kError) return errno = verdict.error, MAP_FAILED;
  return real<void* (*)(void*, size_t, int, int, int, off_t)>("mmap")(address, size, protection, flags, fd,
                                                                      at);
}

}  // extern "C"

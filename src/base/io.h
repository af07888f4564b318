// Every byte llmq reads or writes passes here, so that tests can count it, refuse it, or cut it short.
//
// Io opens files; File reads and writes at offsets. The system implementation is POSIX (O_CLOEXEC, 0644/0755,
// no symlink followed in outputs). Tests wrap it: CountingIo counts, FailingIo fails the k-th call. Nothing
// else in src/ opens a file.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llmq {

using Path = std::filesystem::path;

// What is read of a file, and what is counted, is read and counted in whole blocks.
inline constexpr std::uint64_t kIoBlock = 4096;

class Lease;

// A read-only view of a whole file; unmapped with the object. Bytes are hostile until checked.
//
// Bytes are looked at under a lease: that is what counts them, and where the page cache is gone past
// (Reading::kDirect) what reads them at all: there an access without a lease is a fault at once, never a
// zero.
class Mapping {
 public:
  virtual ~Mapping() = default;
  virtual std::span<const std::byte> bytes() const = 0;
  // [offset, offset+size), as much of it as the file has, until the lease goes; any thread. Blocks that no
  // other lease holds are read, and counted in IoCounters::bytes_read. Error(kIo).
  Lease lease(std::uint64_t offset, std::uint64_t size) const;
  // Tells the kernel that [offset, offset+size) is not needed any more, so that it leaves the resident set;
  // what is leased stays readable.
  virtual void release(std::uint64_t offset, std::uint64_t size) const = 0;
  // Asks the kernel to have [offset, offset+size) in its cache; nothing where there is none. May wait for the
  // disk's queue.
  virtual void read_ahead(std::uint64_t, std::uint64_t) const {}
  // Whether what is leased is memory of this process, and not the page cache's.
  virtual bool in_memory() const { return false; }
  // How a lease begins and ends.
  virtual void take(std::uint64_t offset, std::uint64_t size) const = 0;
  virtual void give_back(std::uint64_t offset, std::uint64_t size) const noexcept = 0;
};

class Lease {
 public:
  Lease() = default;
  Lease(const Mapping& mapping, std::uint64_t offset, std::uint64_t size)
      : mapping_(&mapping), offset_(offset), size_(size) {
    mapping.take(offset, size);
  }
  Lease(Lease&& other) noexcept
      : mapping_(std::exchange(other.mapping_, nullptr)), offset_(other.offset_), size_(other.size_) {}
  Lease& operator=(Lease&& other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(offset_, other.offset_);
    std::swap(size_, other.size_);
    return *this;
  }
  explicit operator bool() const { return mapping_ != nullptr; }
  ~Lease() {
    if (mapping_ != nullptr) mapping_->give_back(offset_, size_);
  }

 private:
  const Mapping* mapping_ = nullptr;
  std::uint64_t offset_ = 0, size_ = 0;
};

inline Lease Mapping::lease(std::uint64_t offset, std::uint64_t size) const { return {*this, offset, size}; }

enum class FileKind : std::uint8_t { kAbsent, kRegular, kDirectory, kSymlink, kOther };

// What stat() says of a file. A file whose stamp has not changed has not been written since, unless within
// the same tick of the file system's clock.
struct FileStamp {
  FileKind kind = FileKind::kAbsent;
  std::uint64_t device = 0, inode = 0, size = 0;
  std::int64_t modified_ns = 0, changed_ns = 0;  // mtime and ctime, since 1970
  bool operator==(const FileStamp&) const = default;
};

class File {
 public:
  virtual ~File() = default;
  virtual std::uint64_t size() = 0;
  virtual FileStamp stamp() = 0;
  virtual void read_at(std::uint64_t offset,
                       std::span<std::byte> into) = 0;  // all or Error(kIo): "ends at byte N"
  virtual void write_at(std::uint64_t offset, std::span<const std::byte> from) = 0;
  virtual void reserve(
      std::uint64_t size) = 0;                 // posix_fallocate: no room is found before the hours are spent
  virtual void sync() = 0;                     // fdatasync; an error is final, never retried
  virtual std::unique_ptr<Mapping> map() = 0;  // whole file, read-only
};

struct IoCounters {
  std::uint64_t bytes_read = 0;  // by read_at() and under leases
  std::uint64_t bytes_written = 0;
};

// A name that one process at a time holds. Released, and the file removed, with the object, or by the kernel
// when the process dies.
class NameLock {
 public:
  virtual ~NameLock() = default;
};

class Io {
 public:
  virtual ~Io() = default;
  virtual std::unique_ptr<File> open(const Path& path) = 0;  // regular files only; a missing one is kBadInput
  virtual std::unique_ptr<File> create(
      const Path& path) = 0;  // O_EXCL | O_NOFOLLOW: never over something that exists
  // A file without a name on the disk of `directory`: nothing is left of it, whatever happens to the process.
  virtual std::unique_ptr<File> create_nameless(const Path& directory) = 0;
  virtual std::unique_ptr<File> open_to_write(
      const Path& path) = 0;  // an existing regular file, kept as it is; no link is followed
  virtual bool exists(const Path& path) = 0;
  virtual bool is_directory(const Path& path) = 0;
  virtual FileStamp stamp(const Path& path) = 0;  // of the name itself: a symbolic link is not followed
  virtual std::vector<std::string> list(const Path& directory) = 0;  // names, sorted, without . and ..
  virtual void make_directory(const Path& path) = 0;                 // with parents; existing is fine
  virtual void rename(const Path& from, const Path& to) = 0;
  // Two names change places in one step; false, and nothing done, where the file system has no such step.
  virtual bool exchange(const Path& a, const Path& b) = 0;
  virtual void make_link(const Path& target, const Path& link) = 0;  // symbolic; `link` must not exist
  virtual std::string read_link(const Path& link) = 0;  // what a symbolic link says; empty for anything else
  // Creates or takes over `path` and writes who holds it. Null while another process does: `holder` is then
  // what that one wrote.
  virtual std::unique_ptr<NameLock> lock(const Path& path, std::string_view self, std::string& holder) = 0;
  virtual void remove(const Path& path) = 0;  // a file or an empty directory; missing is fine
  virtual void sync_directory(const Path& directory) = 0;
  virtual std::uint64_t free_bytes(
      const Path& directory) = 0;  // statvfs of it or of the nearest directory above that exists
  virtual IoCounters counters() const = 0;
};

Io& system_io();

// Whether files that are opened to be read are read through the page cache, or past it (O_DIRECT), where a
// mapping is anonymous memory that holds what is leased.
enum class Reading : std::uint8_t { kCached, kDirect };
// A system_io() with counters of its own. Opening a file past the cache of a file system that has no such
// thing is Error(kUnsupported).
std::unique_ptr<Io> make_system_io(Reading reading);

// The file that this process runs; empty where the system does not say.
Path own_program();

// The whole file as text; larger than `limit` bytes is kBadInput with both figures.
std::string read_text(Io& io, const Path& path, std::uint64_t limit = 64u << 20);

// Writes "<path>.partial-<pid>", syncs, renames over `path`, syncs the directory. A failure leaves no file of
// that name behind.
void write_text_atomically(Io& io, const Path& path, std::string_view text);

}  // namespace llmq

// A file of known size that has its name only when it is whole: pieces come in any order into
// "<target>.partial-<pid>" beside it; publish() syncs and renames. Without publish() nothing is left.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "base/io.h"

namespace llmq {

class PartialFile {
 public:
  // Room for `bytes` is reserved; what is never written reads as zeros.
  PartialFile(Io& io, Path target, std::uint64_t bytes);
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;
  ~PartialFile();

  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  void publish();
  const Path& target() const { return target_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  void remove();

  Io& io_;
  Path target_, partial_;
  std::uint64_t bytes_;
  std::unique_ptr<File> file_;  // null once published
};

// Where the bytes of a file in the making lie.
enum class FilePlace : std::uint8_t {
  kPartial,  // a PartialFile: the file has its name when it is whole
  // the target itself, new, inside a directory that has no name yet (export/output/unfinished_output.h)
  kDirect,
  kExisting,  // the same, as an interrupted writer of the same layout left it; else Error(kBadInput)
};

// A file whose size and first bytes, which say what lies where in it, are known before the rest comes.
class PlacedFile {
 public:
  PlacedFile(Io& io, Path target, std::uint64_t bytes, FilePlace place, std::span<const std::byte> head);
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  bool holds(std::uint64_t offset, std::uint64_t bytes, std::string_view sha256) const;  // not of kPartial
  void sync() { begin_sync()(); }  // what was written so far is on the disk; nothing for kPartial
  // The same when the function that comes back has returned: on any thread, while more is written.
  std::function<void()> begin_sync();
  void finish();  // all of it is, and kPartial has its name
  const Path& target() const { return target_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  Path target_;
  std::uint64_t bytes_;
  std::optional<PartialFile> partial_;  // or
  std::unique_ptr<File> file_;
  bool unsynced_ = false;
};

}  // namespace llmq

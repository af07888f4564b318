// A file of known size that has its name only when it is whole: pieces come in any order into
// "<target>.partial-<pid>" beside it; publish() syncs and renames. Without publish() nothing is left.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

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

}  // namespace llmq

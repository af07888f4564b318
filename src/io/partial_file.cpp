#include "io/partial_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <exception>

namespace llmq {

PartialFile::PartialFile(Io& io, Path target, std::uint64_t bytes)
    : io_(io), target_(std::move(target)), partial_(target_), bytes_(bytes) {
  partial_ += fmt::format(".partial-{}", getpid());
  file_ = io.create(partial_);
  try {
    file_->reserve(bytes);
  } catch (...) {
    remove();
    throw;
  }
}

PartialFile::~PartialFile() {
  if (file_) remove();
}

void PartialFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  file_->write_at(offset, bytes);
}

void PartialFile::publish() {
  file_->sync();
  io_.rename(partial_, target_);
  file_.reset();
  io_.sync_directory(target_.has_parent_path() ? target_.parent_path() : Path("."));
}

void PartialFile::remove() {
  file_.reset();
  try {
    io_.remove(partial_);
  } catch (const std::exception&) {  // nothing more can be done about a file that cannot be removed
  }
}

}  // namespace llmq

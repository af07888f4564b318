#include "io/partial_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <vector>

#include "base/error.h"
#include "base/parent_path.h"
#include "base/sha256.h"

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
  io_.sync_directory(parent_of(target_));
}

PlacedFile::PlacedFile(Io& io, Path target, std::uint64_t bytes, FilePlace place,
                       std::span<const std::byte> head)
    : target_(std::move(target)), bytes_(bytes) {
  if (place == FilePlace::kExisting) {
    file_ = io.open_to_write(target_);
    std::vector<std::byte> found(head.size());
    if (file_->size() == bytes) file_->read_at(0, found);
    if (file_->size() != bytes || !std::equal(head.begin(), head.end(), found.begin()))
      fail(ErrorKind::kBadInput, {"is not laid out as it was declared", target_.string(), {}, {}});
    return;
  }
  if (place == FilePlace::kPartial) {
    partial_.emplace(io, target_, bytes);
  } else {
    file_ = io.create(target_);
    file_->reserve(bytes);
  }
  write_at(0, head);
}

void PlacedFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  unsynced_ = true;
  if (partial_)
    partial_->write_at(offset, bytes);
  else
    file_->write_at(offset, bytes);
}

bool PlacedFile::holds(std::uint64_t offset, std::uint64_t bytes, std::string_view sha256) const {
  constexpr std::uint64_t kPiece = 1u << 20;
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(kPiece, bytes)));
  Sha256 digest;
  for (std::uint64_t at = 0; at < bytes; at += piece.size()) {
    const auto part =
        std::span(piece).first(static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), bytes - at)));
    file_->read_at(offset + at, part);
    digest.update(part);
  }
  return digest.hex() == sha256;
}

std::function<void()> PlacedFile::begin_sync() {
  if (!unsynced_ || !file_) return [] {};
  unsynced_ = false;
  return [file = file_.get()] { file->sync(); };
}

void PlacedFile::finish() {
  if (partial_)
    partial_->publish();
  else
    sync();
}

void PartialFile::remove() {
  file_.reset();
  try {
    io_.remove(partial_);
  } catch (const std::exception&) {  // nothing more can be done about a file that cannot be removed
  }
}

}  // namespace llmq

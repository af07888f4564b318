#include "export/output/shard_gathering.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/sha256.h"

namespace llmq {
namespace {

constexpr std::uint64_t kGatheredPiece = 4u << 20;

// Reads a file at one rank, piece by piece; all know how many there are.
class SentFile {
 public:
  SentFile(Ranks& ranks, Io& io, int from, const Path& path) : sends_(ranks.rank() == from) {
    if (sends_) file_ = io.open(path);
    if (sends_) bytes_ = file_->size();
    ranks.broadcast(from, std::as_writable_bytes(std::span(&bytes_, 1)));
  }
  std::uint64_t bytes() const { return bytes_; }
  // Room for the piece at `offset`, with its bytes where they are sent.
  std::span<std::byte> piece(std::uint64_t offset) {
    piece_.resize(static_cast<std::size_t>(std::min(kGatheredPiece, bytes_ - offset)));
    if (sends_) file_->read_at(offset, piece_);
    return piece_;
  }

 private:
  bool sends_;
  std::unique_ptr<File> file_;
  std::uint64_t bytes_ = 0;
  RankBytes piece_;
};

// What comes, into a file that is there.
class ReceivedFile {
 public:
  ReceivedFile(Io& io, const Path& path, std::uint64_t bytes) : path_(path), file_(io.open_to_write(path)) {
    if (file_->size() != bytes)
      fail(ErrorKind::kIo, {fmt::format("has {} bytes, and {} come from another rank", file_->size(), bytes),
                            path.string(),
                            {},
                            "nobody else may write there"});
  }
  void write_at(std::uint64_t offset, std::span<const std::byte> piece) {
    digest_.update(piece);
    file_->write_at(offset, piece);
  }
  void end(const std::string& sha256, int from) {
    const std::string came = digest_.hex();
    if (came != sha256)
      fail(ErrorKind::kIo,
           {fmt::format("came from rank {} with SHA-256 {}, and it had {} there before it was sent", from,
                        came, sha256),
            path_.string(),
            {},
            "look after that node's disk and the network; the same command goes on"});
    file_->sync();
  }

 private:
  Path path_;
  std::unique_ptr<File> file_;
  Sha256 digest_;
};

}  // namespace

void gather_file(Ranks& ranks, Io& io, int from, const Path& file, const std::string& sha256) {
  SentFile sent(ranks, io, from, file);
  std::optional<ReceivedFile> received;
  if (ranks.rank() == 0) received.emplace(io, file, sent.bytes());
  for (std::uint64_t offset = 0; offset < sent.bytes(); offset += kGatheredPiece) {
    std::span<const std::byte> given;
    if (ranks.rank() == from) given = sent.piece(offset);
    const std::vector<RankBytes> came = ranks.gather(0, given);
    if (received) received->write_at(offset, came[static_cast<std::size_t>(from)]);
  }
  if (received) received->end(sha256, from);
}

void spread_file(Ranks& ranks, Io& io, int from, const Path& file, bool takes) {
  SentFile sent(ranks, io, from, file);
  std::optional<ReceivedFile> received;
  if (takes) received.emplace(io, file, sent.bytes());
  Sha256 digest;
  for (std::uint64_t offset = 0; offset < sent.bytes(); offset += kGatheredPiece) {
    const std::span<std::byte> piece = sent.piece(offset);
    if (ranks.rank() == from) digest.update(piece);
    ranks.broadcast(from, piece);
    if (received) received->write_at(offset, piece);
  }
  const std::string sha256 = broadcast_text(ranks, from, ranks.rank() == from ? digest.hex() : "");
  if (received) received->end(sha256, from);
}

}  // namespace llmq

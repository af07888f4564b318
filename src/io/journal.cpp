#include "io/journal.h"

#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/sha256.h"

namespace llmq {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;
constexpr std::size_t kDigestDigits = 64;

std::string line_digest(const std::string& before, std::string_view text) {
  Sha256 digest;
  digest.update(before);
  digest.update(text);
  return digest.hex();
}

}  // namespace

Journal Journal::create(Io& io, const Path& path) {
  Journal journal;
  journal.file_ = io.create(path);
  return journal;
}

Journal Journal::open(Io& io, const Path& path) {
  const std::string text = read_text(io, path, kMostBytes);
  Journal journal;
  journal.file_ = io.open_to_write(path);
  std::string before;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos || end - at <= kDigestDigits || text[at + kDigestDigits] != ' ') break;
    const std::string_view record =
        std::string_view(text).substr(at + kDigestDigits + 1, end - at - kDigestDigits - 1);
    before = line_digest(before, record);
    if (std::string_view(text).substr(at, kDigestDigits) != before) break;
    journal.records_.push_back(Json::parse(record, path.string()));
    at = end + 1;
    journal.ends_.push_back(at);
    journal.digests_.push_back(before);
  }
  return journal;
}

void Journal::append(const Json& record) {
  const std::string text = record.dump();
  const std::string digest = line_digest(digests_.empty() ? std::string() : digests_.back(), text);
  const std::string line = digest + " " + text + "\n";
  const std::uint64_t at = ends_.empty() ? 0 : ends_.back();
  file_->write_at(at, std::as_bytes(std::span(line)));
  file_->sync();
  records_.push_back(record);
  ends_.push_back(at + line.size());
  digests_.push_back(digest);
}

void Journal::keep(std::size_t count) {
  if (count >= records_.size()) return;
  records_.resize(count);
  ends_.resize(count);
  digests_.resize(count);
}

}  // namespace llmq

// The file: one line per digest, "device inode size mtime ctime sha256", sorted. A line that is anything else
// is skipped. Two programs that save at once lose what one of them learnt.
#include "io/digest_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/seconds_since.h"
#include "base/sha256.h"

namespace llmq {
namespace {

constexpr std::size_t kDigestPiece = std::size_t{1} << 20;
constexpr std::int64_t kSettledNs = 2'000'000'000;  // the coarsest clock of a file system still in use: FAT's
constexpr std::uint64_t kMaxFileBytes = 16u << 20;
constexpr std::size_t kMaxDigests = 50'000;  // of about 150 bytes
constexpr std::string_view kHexDigits = "0123456789abcdef";

// The number at the start of `line`, which it and the blank after it leave; false when there is none.
template <typename Number>
bool take(std::string_view& line, Number& number) {
  const auto [rest, error] = std::from_chars(line.data(), line.data() + line.size(), number);
  if (error != std::errc() || rest == line.data() + line.size() || *rest != ' ') return false;
  line.remove_prefix(static_cast<std::size_t>(rest - line.data()) + 1);
  return true;
}

bool is_sha256(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of(kHexDigits) == std::string_view::npos;
}

}  // namespace

std::string file_sha256(File& file) {
  const std::uint64_t size = file.size();
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min<std::uint64_t>(kDigestPiece, size)));
  Sha256 digest;
  for (std::uint64_t at = 0; at < size; at += piece.size()) {
    const auto part =
        std::span(piece).first(static_cast<std::size_t>(std::min<std::uint64_t>(kDigestPiece, size - at)));
    file.read_at(at, part);
    digest.update(part);
  }
  return digest.hex();
}

std::string file_sha256(Io& io, const Path& path) { return file_sha256(*io.open(path)); }

Path DigestCache::default_file() {
  if (const char* chosen = std::getenv("LLMQ_DIGEST_CACHE")) return chosen;
  const auto below = [](const char* variable, const char* between) -> Path {
    const char* value = std::getenv(variable);
    return value == nullptr || *value == '\0' ? Path() : Path(value) / between / "llmq" / "digests";
  };
  const Path own = below("XDG_CACHE_HOME", "");
  return own.empty() ? below("HOME", ".cache") : own;
}

DigestCache::DigestCache(Io& io, Path file, std::function<std::int64_t()> now_ns)
    : io_(io), file_(std::move(file)), now_ns_(now_ns ? std::move(now_ns) : unix_time_ns), known_(load()) {}

DigestCache::Key DigestCache::key_of(const FileStamp& s) {
  return {s.device, s.inode, s.size, s.modified_ns, s.changed_ns};
}

bool DigestCache::knows(const FileStamp& stamp) {
  const std::lock_guard lock(mutex_);
  return known_.count(key_of(stamp)) != 0;
}

bool DigestCache::is_settled(const FileStamp& stamp) const {
  return std::max(stamp.modified_ns, stamp.changed_ns) + kSettledNs <= now_ns_();
}

int DigestCache::readings(const Path& path, Io& through) {
  const FileStamp stamp = through.open(path)->stamp();
  return knows(stamp) ? 0 : is_settled(stamp) ? 1 : 2;
}

std::string DigestCache::sha256(const Path& path, Io& through) {
  const std::unique_ptr<File> file = through.open(path);
  const FileStamp before = file->stamp();
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = known_.find(key_of(before)); found != known_.end()) return found->second;
  }
  const bool settled = is_settled(before);
  std::string digest = file_sha256(*file);
  if (settled && file->stamp() == before) {
    const std::lock_guard lock(mutex_);
    known_.emplace(key_of(before), digest);
    learnt_.emplace(key_of(before), digest);
  }
  return digest;
}

DigestCache::Digests DigestCache::load() noexcept {
  Digests digests;
  try {
    if (file_.empty() || !io_.exists(file_)) return digests;
    const std::string text = read_text(io_, file_, kMaxFileBytes);
    for (std::string_view rest = text; !rest.empty();) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      std::string_view line = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      FileStamp s;
      if (take(line, s.device) && take(line, s.inode) && take(line, s.size) && take(line, s.modified_ns) &&
          take(line, s.changed_ns) && is_sha256(line))
        digests[key_of(s)] = line;
    }
  } catch (...) {
    digests.clear();
  }
  return digests;
}

void DigestCache::save() noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (file_.empty() || learnt_.empty()) return;
    Digests all = load();
    if (all.size() + learnt_.size() > kMaxDigests) all.clear();  // of files long gone, for the greater part
    all.insert(learnt_.begin(), learnt_.end());
    std::string text;
    for (const auto& [key, digest] : all)
      text += fmt::format("{} {} {} {} {} {}\n", std::get<0>(key), std::get<1>(key), std::get<2>(key),
                          std::get<3>(key), std::get<4>(key), digest);
    if (file_.has_parent_path()) io_.make_directory(file_.parent_path());
    write_text_atomically(io_, file_, text);
    learnt_.clear();
  } catch (...) {
  }
}

}  // namespace llmq

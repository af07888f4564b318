// SHA-256 of whole files, and what is remembered of them from run to run.
//
// A remembered digest is taken for a file whose device, inode, size, mtime and ctime are what they were. It
// is remembered only if the file had been left alone for two seconds before it was read and was not written
// while it was: within one tick of a file system's clock a change leaves no trace. Whoever can set the clock
// back can deceive it, so what must be certain (`verify`, a rehash) calls file_sha256().
//
// Cost: reading the file once, in pieces of 1 MiB that no mapping holds; a remembered one costs an open and a
// stat.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "base/io.h"

namespace llmq {

// A file by its name within a directory (or a name of its own), with what it holds.
struct NamedDigest {
  std::string name;
  std::uint64_t bytes = 0;
  std::string sha256;  // 64 hexadecimal digits
  bool operator==(const NamedDigest&) const = default;
};

std::string file_sha256(File& file);
std::string file_sha256(Io& io, const Path& path);

class DigestCache {
 public:
  // $LLMQ_DIGEST_CACHE, which may be empty: nothing is remembered; else llmq/digests below $XDG_CACHE_HOME or
  // ~/.cache.
  static Path default_file();

  // An empty path: remembered in memory only. A file that is missing, unreadable or damaged counts as empty.
  // `now_ns`: the time since 1970.
  DigestCache(Io& io, Path file, std::function<std::int64_t()> now_ns = {});

  // Links are followed; any thread. `through`: by what the file is read, where not by what the cache is.
  std::string sha256(const Path& path) { return sha256(path, io_); }
  std::string sha256(const Path& path, Io& through);
  // How often a run that asks twice for the digest reads the file: not at all, once, or, of a file that was
  // just written, twice.
  int readings(const Path& path, Io& through);
  // Adds what was learnt to the file. A failure costs time later and nothing else: it is not an error.
  void save() noexcept;

 private:
  using Key = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::int64_t, std::int64_t>;
  using Digests = std::map<Key, std::string>;
  static Key key_of(const FileStamp& stamp);
  bool knows(const FileStamp& stamp);
  bool is_settled(const FileStamp& stamp) const;
  Digests load() noexcept;

  Io& io_;
  Path file_;
  std::function<std::int64_t()> now_ns_;
  std::mutex mutex_;
  Digests known_, learnt_;
};

}  // namespace llmq

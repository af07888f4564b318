// An append-only list of JSON records that outlives a kill or a power cut after any byte.
//
//   one record a line: <SHA-256 of the line before's digest and of the text, 64 digits> <text>\n
//
// Each line's digest takes in the one before, so a line counts only where it was written; reading stops at
// the first that does not fit, which is where the writer was stopped. append() returns when the record is on
// the disk.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/io.h"
#include "base/json.h"

namespace llmq {

class Journal {
 public:
  // Starts a new one; `path` must not exist.
  static Journal create(Io& io, const Path& path);
  // Reads what is there, whatever follows it; the next append() goes over that.
  static Journal open(Io& io, const Path& path);

  const std::vector<Json>& records() const { return records_; }
  void append(const Json& record);
  // Forgets all but the first `count` records.
  void keep(std::size_t count);

 private:
  Journal() = default;
  std::unique_ptr<File> file_;
  std::vector<Json> records_;
  std::vector<std::uint64_t> ends_;   // of each record
  std::vector<std::string> digests_;  // of each record's line
};

}  // namespace llmq

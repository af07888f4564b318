// --trace-file: what a run did and when, as spans of OpenTelemetry in a file.
//
// Each line is one ExportTraceServiceRequest of OTLP 1.x in its JSON encoding (opentelemetry.io, "OTLP file
// exporter"), as the collector's otlpjsonfile receiver reads it: ids in hexadecimal, times in nanoseconds
// since 1970 and integers as decimal text. A line is written when its span ends, so a killed process leaves
// those that ended; a file that is there is gone on with. One process writes a file. Nothing here goes to the
// network. Where no file is open a span costs one load.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/io.h"
#include "base/json.h"

namespace llmq {

// Where a span belongs: 32 and 16 lower-case hexadecimal digits, or both empty.
struct TraceContext {
  std::string trace_id, span_id;
  bool sampled = true;  // whether whoever made it records it
  bool operator==(const TraceContext&) const = default;
};

struct Span {
  enum class Kind : std::uint8_t { kInternal = 1, kServer = 2 };  // as OTLP numbers them
  std::string name;
  Kind kind = Kind::kInternal;
  TraceContext parent = {};                   // none: a trace of its own
  std::int64_t started_ns = 0, ended_ns = 0;  // since 1970
  Json attributes = {};                       // an object of texts, numbers and booleans
  std::string failure = {};                   // not empty: the span's status is an error, with these words
};

// `own`: what the span is named; its trace is that of the parent, where there is one.
Json span_request(const Span& span, const TraceContext& own, const std::string& version);

class TraceFile {
 public:
  static TraceFile& get();
  // Begins with the span of the command, parent of all that have no other. Error(kIo) or kBadInput where the
  // file cannot be written.
  void open(Io& io, const Path& path, const std::string& version);
  bool is_open() const { return open_; }
  // The span that `close()` writes, which those within the command are told of. Empty where nothing is open.
  const TraceContext& command() const { return command_; }
  // From any thread. What cannot be written is said once, as a warning, and the run goes on without.
  void write(const Span& span);
  // The span of the command itself.
  void close(const std::string& name, Json attributes, const std::string& failure);

 private:
  void write_line(const Span& span, const TraceContext& own);
  std::mutex mutex_;
  std::atomic<bool> open_{false};
  std::unique_ptr<File> file_;
  std::uint64_t size_ = 0;
  std::string version_;
  TraceContext command_;
  std::int64_t started_ns_ = 0;
};

}  // namespace llmq

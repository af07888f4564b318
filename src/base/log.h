// Words to stderr: notes, warnings, errors and progress. Nothing here ever touches stdout.
//
// As text, progress on a terminal is one line, redrawn ("block 12/30 · down_proj · loss 1.2e-3 · 02:10
// left"); otherwise one plain line per block. NO_COLOR is honoured. Quiet leaves errors only.
// Progress can also be plain lines on a terminal, or objects for a front end (schema llmq.progress/1), at
// most ten a second and one at each milestone. As JSON, every line is an object: time (RFC 3339, UTC,
// milliseconds), level (debug, info, warning, error), message, and the fields that whoever logs it gives.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "base/json.h"

namespace llmq {

enum class Verbosity { kQuiet, kNormal, kVerbose };
enum class LogFormat { kText, kJson };
enum class ProgressForm { kLine, kPlain, kJson };

class Log {
 public:
  static Log& get();
  void set_verbosity(Verbosity verbosity);
  void set_format(LogFormat format);
  LogFormat format() const { return format_; }
  void set_progress(ProgressForm form) { progress_ = form; }
  ProgressForm progress() const { return progress_; }
  // `fields`, an object, are for lines of JSON alone: the sentence says what matters without them.
  void note(std::string_view sentence, const Json& fields = {});    // shown unless quiet
  void detail(std::string_view sentence, const Json& fields = {});  // shown with -v
  void warn(std::string_view sentence, const Json& fields = {});   // shown unless quiet; text: "warning: ..."
  void error(std::string_view sentence, const Json& fields = {});  // always shown; text: "llmq: ..."
  void progress_line(std::string_view line, bool final_line);      // redraws on a terminal
  void progress_object(const Json& object);                        // where progress is objects; unless quiet
  bool redraws() const;

 private:
  Log();
  // `before`: what stands before the sentence in a text
  void line(const char* level, std::string_view before, std::string_view sentence, const Json& fields);
  std::mutex mutex_;
  Verbosity verbosity_ = Verbosity::kNormal;
  std::atomic<LogFormat> format_{LogFormat::kText};
  std::atomic<ProgressForm> progress_{ProgressForm::kLine};
  bool terminal_ = false, line_open_ = false;
};

// Text that neither moves a terminal's cursor nor begins a line: controls of U+0000 to U+001F and U+007F to
// U+009F as "\x1b". Sentences quote what files and requests say.
std::string without_controls(std::string_view text);

// A line of JSON with its end; without a time where that is empty.
std::string json_log_line(const std::string& time, const char* level, std::string_view message,
                          const Json& fields);

// Steps of known relative cost with an estimate of the time left, from the cost done so far.
class Progress {
 public:
  Progress(std::string title, double total_cost);
  ~Progress();
  // `place`: "block 3/30 · self_attn.o_proj"; `figures`: "loss 1.2e-3". Redraws at most ten times a second on
  // a terminal; elsewhere prints when `milestone` is true.
  void advance(double cost, std::string_view place, std::string_view figures, bool milestone);

 private:
  void write_object(std::string_view place, std::string_view figures) const;
  double seconds() const;
  std::string title_;
  double total_, done_ = 0;
  std::int64_t started_ns_, drawn_ns_ = 0;
};

}  // namespace llmq

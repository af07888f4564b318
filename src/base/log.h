// Words to stderr: notes, warnings and progress. Nothing here ever touches stdout.
//
// Progress on a terminal is one line, redrawn ("block 12/30 · down_proj · loss 1.2e-3 · 02:10 left");
// otherwise one plain line per block. NO_COLOR is honoured. Quiet leaves errors only.
#pragma once
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace llmq {

enum class Verbosity { kQuiet, kNormal, kVerbose };

class Log {
 public:
  static Log& get();
  void set_verbosity(Verbosity verbosity);
  void note(std::string_view sentence);                        // shown unless quiet
  void detail(std::string_view sentence);                      // shown with -v
  void warn(std::string_view sentence);                        // shown unless quiet, prefixed "warning: "
  void progress_line(std::string_view line, bool final_line);  // redraws on a terminal
  bool is_terminal() const;

 private:
  Log();
  std::mutex mutex_;
  Verbosity verbosity_ = Verbosity::kNormal;
  bool terminal_ = false, line_open_ = false;
};

// Steps of known relative cost with an estimate of the time left, from the cost done so far.
class Progress {
 public:
  Progress(std::string title, double total_cost);
  ~Progress();
  // `place`: "block 3/30 · self_attn.o_proj"; `figures`: "loss 1.2e-3". Redraws at most ten times a second on
  // a terminal; elsewhere prints when `milestone` is true.
  void advance(double cost, std::string_view place, std::string_view figures, bool milestone);

 private:
  std::string title_;
  double total_, done_ = 0;
  std::int64_t started_ns_, drawn_ns_ = 0;
};

}  // namespace llmq

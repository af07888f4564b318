// A redrawn line is wiped before anything else is written, so that the two never mix.
#include "base/log.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>

namespace llmq {
namespace {

constexpr std::string_view kWipe = "\r\x1b[K";
constexpr std::int64_t kRedrawNs = 100'000'000;  // ten times a second

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void write_stderr(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

// The first `width` characters (code points) of a line, so that a redraw never wraps.
std::string_view cut(std::string_view line, std::size_t width) {
  std::size_t characters = 0;
  for (std::size_t i = 0; i < line.size(); ++i)
    if ((static_cast<unsigned char>(line[i]) & 0xc0u) != 0x80u && ++characters > width)
      return line.substr(0, i);
  return line;
}

std::size_t terminal_width() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1u : 79u;
}

// "2026-11-25T21:04:05.678Z"
std::string utc_now() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  std::tm parts{};
  ::gmtime_r(&now.tv_sec, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%FT%T", &parts);
  return fmt::format("{}.{:03}Z", text, now.tv_nsec / 1'000'000);
}

std::string time_left(double seconds) {
  const auto s = std::llround(std::clamp(seconds, 0.0, 1e9));
  return s >= 3600 ? fmt::format("{}:{:02}:{:02} left", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{:02}:{:02} left", s / 60, s % 60);
}

}  // namespace

Log::Log() : terminal_(::isatty(STDERR_FILENO) == 1) {}

Log& Log::get() {
  static Log log;
  return log;
}

void Log::set_verbosity(Verbosity verbosity) {
  const std::lock_guard lock(mutex_);
  verbosity_ = verbosity;
}

std::string without_controls(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x20 || c == 0x7f)
      shown += fmt::format("\\x{:02x}", c);
    else if (c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0)
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[++i]));
    else
      shown += text[i];
  }
  return shown;
}

std::string json_log_line(const std::string& time, const char* level, std::string_view message,
                          const Json& fields) {
  Json line = Json::object();
  if (!time.empty()) line["time"] = time;
  line["level"] = level;
  line["message"] = message;
  if (fields.is_object())
    for (const Json::Member& field : fields.members()) line[field.first] = field.second;
  return line.dump() + "\n";
}

void Log::set_format(LogFormat format) { format_ = format; }

bool Log::redraws() const {
  return terminal_ && format_ == LogFormat::kText && progress_ == ProgressForm::kLine;
}

void Log::progress_object(const Json& object) {
  const std::lock_guard lock(mutex_);
  if (verbosity_ != Verbosity::kQuiet) write_stderr(object.dump() + "\n");
}

// With the mutex held.
void Log::line(const char* level, std::string_view before, std::string_view sentence, const Json& fields) {
  if (format_ == LogFormat::kJson) return write_stderr(json_log_line(utc_now(), level, sentence, fields));
  write_stderr(fmt::format("{}{}{}\n", line_open_ ? kWipe : "", before, without_controls(sentence)));
  line_open_ = false;
}

void Log::note(std::string_view sentence, const Json& fields) {
  const std::lock_guard lock(mutex_);
  if (verbosity_ != Verbosity::kQuiet) line("info", "", sentence, fields);
}

void Log::detail(std::string_view sentence, const Json& fields) {
  const std::lock_guard lock(mutex_);
  if (verbosity_ == Verbosity::kVerbose) line("debug", "", sentence, fields);
}

void Log::warn(std::string_view sentence, const Json& fields) {
  const char* no_color = std::getenv("NO_COLOR");
  const bool color = terminal_ && (no_color == nullptr || *no_color == '\0');
  const std::string before = fmt::format("{}warning:{} ", color ? "\x1b[33m" : "", color ? "\x1b[0m" : "");
  const std::lock_guard lock(mutex_);
  if (verbosity_ != Verbosity::kQuiet) line("warning", before, sentence, fields);
}

void Log::error(std::string_view sentence, const Json& fields) {
  const std::lock_guard lock(mutex_);
  line("error", "llmq: ", sentence, fields);
}

void Log::progress_line(std::string_view text, bool final_line) {
  const std::lock_guard lock(mutex_);
  if (verbosity_ == Verbosity::kQuiet) return;
  if (!redraws()) return line("info", "", text, {});
  write_stderr(
      fmt::format("{}{}{}", kWipe, cut(without_controls(text), terminal_width()), final_line ? "\n" : ""));
  line_open_ = !final_line;
}

Progress::Progress(std::string title, double total_cost)
    : title_(std::move(title)), total_(total_cost), started_ns_(now_ns()) {}

double Progress::seconds() const { return static_cast<double>(now_ns() - started_ns_) * 1e-9; }

void Progress::write_object(std::string_view place, std::string_view figures) const {
  const double spent = seconds(), share = total_ > 0 ? std::clamp(done_ / total_, 0.0, 1.0) : 1;
  Log::get().progress_object(
      Json::object({{"schema", "llmq.progress/1"},
                    {"time", utc_now()},
                    {"task", title_},
                    {"share", share},
                    {"seconds", spent},
                    {"seconds_left", share > 0 ? Json(spent * (1 - share) / share) : Json()},
                    {"place", place},
                    {"figures", figures}}));
}

Progress::~Progress() {
  if (done_ < total_) return;
  if (Log::get().progress() == ProgressForm::kJson)
    write_object("", "");
  else
    Log::get().progress_line(fmt::format("{} · done in {:.1f} s", title_, seconds()), true);
}

void Progress::advance(double cost, std::string_view place, std::string_view figures, bool milestone) {
  done_ += cost;
  const std::int64_t now = now_ns();
  const bool objects = Log::get().progress() == ProgressForm::kJson;
  if (!milestone && (!(objects || Log::get().redraws()) || now - drawn_ns_ < kRedrawNs)) return;
  drawn_ns_ = now;
  // The last step is told by the end, once.
  if (objects) return done_ < total_ ? write_object(place, figures) : void();
  std::string line = title_;
  for (const std::string_view part : {place, figures})
    if (!part.empty()) line += fmt::format(" · {}", part);
  if (done_ > 0 && done_ < total_)
    line += " · " + time_left(static_cast<double>(now - started_ns_) * 1e-9 * (total_ - done_) / done_);
  Log::get().progress_line(line, false);
}

}  // namespace llmq

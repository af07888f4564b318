#include "tools/predicted_time.h"

#include "tools/print.h"

namespace llmq::tools {

bool is_long(double flops, std::uint64_t bytes_in) {
  constexpr double kFlops = 5e13;
  constexpr std::uint64_t kBytes = 2'000'000'000;
  return flops >= kFlops || bytes_in >= kBytes;
}

Path directory_of(const Path& output) { return output.has_parent_path() ? output.parent_path() : Path("."); }

void print_time(const TimePrediction& time) {
  std::string parts;
  for (const auto& [part, seconds] : time.parts)
    parts += (parts.empty() ? "" : ", ") + part + " " + seconds_text(seconds);
  print_line(time.unknown.empty() ? fmt::format("about {} on this machine when it is idle ({})",
                                                seconds_text(time.seconds), parts)
                                  : "no time is predicted: " + time.unknown);
}

}  // namespace llmq::tools

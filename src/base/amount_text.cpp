#include "base/amount_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace llmq {

std::string bytes_text(std::uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value >= 1e9) return fmt::format("{:.2f} GB", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.1f} MB", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.1f} kB", value / 1e3);
  return fmt::format("{} B", bytes);
}

std::string figure_bytes_text(double bytes) {
  return bytes_text(static_cast<std::uint64_t>(std::clamp(bytes, 0.0, 1e18)));
}

std::string seconds_text(double seconds) {
  if (seconds < 100) return fmt::format("{:.1f} s", seconds);
  const auto whole = std::llround(std::min(seconds, 1e15));
  if (whole < 7200) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

}  // namespace llmq

// Limits are told in seconds; timers want durations of a clock.
#pragma once
#include <chrono>

namespace llmq {

inline std::chrono::steady_clock::duration as_duration(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds));
}

}  // namespace llmq

// What has passed since a point in time, by the clock that nobody sets.
#pragma once
#include <chrono>

namespace llmq {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace llmq

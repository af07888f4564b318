// How much of the process was in memory while blocks were worked on, for the page of the report: looked at
// after each linear, noted at the end of each block. A look costs some microseconds; no byte of the output
// depends on it.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/json.h"
#include "base/resident_memory.h"
#include "base/seconds_since.h"

namespace llmq {

class MemoryTrace {
 public:
  void look() { most_ = std::max(most_, resident_bytes()); }
  // The end of a part: what is there now, and the most that was seen since the last part.
  void mark() {
    const std::uint64_t now = resident_bytes();
    samples_.push_back({seconds_since(start_), now, std::max(most_, now)});
    most_ = 0;
  }
  Json to_json() const {
    Json list = Json::array();
    for (const Sample& sample : samples_)
      list.push_back(Json::object(
          {{"seconds", sample.seconds}, {"rss_bytes", sample.now}, {"most_bytes", sample.most}}));
    return list;
  }

 private:
  struct Sample {
    double seconds;
    std::uint64_t now, most;
  };
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::uint64_t most_ = 0;
  std::vector<Sample> samples_;
};

}  // namespace llmq

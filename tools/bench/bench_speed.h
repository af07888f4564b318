// llmq bench --suite latency and throughput: prompts read and tokens written by this process, beside what the
// machine can do at most.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/load_options.h"

namespace llmq::tools {

struct SpeedBench {
  std::string suite;                  // "latency" or "throughput"
  std::vector<std::int64_t> batches;  // not empty
  std::optional<int> runs;
};

// Of `serve`: the model, the lengths and where the figures go.
int bench_speed(const SpeedBench& options, const ServeBench& serve, const GlobalOptions& globals);

}  // namespace llmq::tools

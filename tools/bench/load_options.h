// The flags of the load that suites serve and matrix of `llmq bench` send, and what they mean.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "evaluate/load_plan.h"
#include "tools/flags/engine_flags.h"

namespace llmq::tools {

inline constexpr std::int64_t kMostRequests = 100'000;  // of a row

struct ServeBench {
  EngineFlags engine;
  std::string endpoint, api_key_file, csv, html, save_result;
  std::vector<std::int64_t> clients{16};
  std::vector<std::string> rates{"inf"};
  std::optional<std::int64_t> prompt_tokens, new_tokens, requests;
  std::optional<double> price_per_hour;
  std::optional<double> shared_prefix;
  std::vector<std::string> batching{"continuous"};
  std::string answer_lengths = "uniform";
  std::uint64_t seed = 1;
  bool may_end = false;
};

// Those of the load alone.
std::vector<const CLI::Option*> add_load_flags(CLI::App& command, ServeBench& options);
// Error(kUsage) for a load that is none; and the load, but for its number of requests and the share that
// begins alike.
void check_load(const ServeBench& options);
LoadMix mix_of(const ServeBench& options);
// Requests per second of one of its rates; infinite for "inf".
double parse_rate(const std::string& text);

}  // namespace llmq::tools

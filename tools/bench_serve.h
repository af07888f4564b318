// llmq bench --suite serve: a fixed mix of requests to this program's own server, over the loopback
// interface, or to a server elsewhere.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "evaluate/load_plan.h"
#include "tools/prepared_server.h"

namespace llmq::tools {

struct ServeBench {
  EngineFlags engine;
  std::string endpoint, api_key_file, csv, html;
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

// The flags of this suite alone.
std::vector<const CLI::Option*> add_load_flags(CLI::App& command, ServeBench& options);
// Error(kUsage) for a load that is none; and the load, but for its number of requests and the share that
// begins alike.
void check_load(const ServeBench& options);
LoadMix mix_of(const ServeBench& options);
// 0; 3 when requests failed, after the figures of the others.
int bench_serve(const ServeBench& options, const GlobalOptions& globals);

}  // namespace llmq::tools

// llmq bench --suite serve: a fixed mix of requests to this program's own server, over the loopback interface, or to a server elsewhere.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/prepared_server.h"

namespace llmq::tools {

struct ServeBench {
  EngineFlags engine;
  std::string endpoint, api_key_file, csv, html;
  std::vector<std::int64_t> clients{16};
  std::vector<std::string> rates{"inf"};
  std::optional<std::int64_t> prompt_tokens, new_tokens, requests;
  std::optional<double> price_per_hour;
  double shared_prefix = 0.25;
  std::uint64_t seed = 1;
  bool may_end = false;
};

// The flags of this suite alone.
std::vector<const CLI::Option*> add_load_flags(CLI::App& command, ServeBench& options);
// 0; 3 when requests failed, after the figures of the others.
int bench_serve(const ServeBench& options, const GlobalOptions& globals);

}  // namespace llmq::tools

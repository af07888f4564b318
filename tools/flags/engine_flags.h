// The flags of an engine that serves, as `llmq serve` and the serving suites of `llmq bench` have them.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/scheduler.h"
#include "tools/command.h"
#include "tools/draft.h"
#include "tools/flags/placement_option.h"

namespace llmq::tools {

inline constexpr std::int64_t kShortestContext = 2;  // a token of a prompt and one of its answer

struct EngineFlags {
  std::string model, head = "stored", kv_cache_dtype = "auto", kv_memory, state_memory = "1GiB", swap_space,
                     served_name;
  std::int64_t max_model_len = 0;
  PlacementFlags placement;
  DraftOptions draft;
  SchedulerLimits limits{32, 2048, 0, 512};
  int block_size = 16;
  bool no_prefix_caching = false;
  std::vector<std::string> lora;  // NAME=DIR
  std::string lora_dir;           // from below which requests may load more; empty: from nowhere
  std::size_t max_loras = 16;
  std::int64_t max_lora_rank = 64;
};

// all but the model, --head, --kv-cache-dtype and those of the placement
void add_engine_flags(CLI::App& command, EngineFlags& flags);
void check_engine_flags(const EngineFlags& flags, Compute compute);

// Of --swap-space, which this machine must have.
std::uint64_t swap_bytes(const EngineFlags& flags);

}  // namespace llmq::tools

// A model made ready to be served: what `llmq serve` and `llmq bench --suite serve` share.
#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "runtime/serving_engine.h"
#include "serve/serve.h"
#include "tools/command.h"
#include "tools/draft.h"
#include "tools/loaded_model.h"
#include "tools/placement_option.h"

namespace llmq::tools {

struct EngineFlags {
  std::string model, head = "stored", kv_cache_dtype = "auto", kv_memory, swap_space, served_name;
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

// Positions of the cache and of one context, from what was asked for, what the model has, and memory.
struct Room {
  std::int64_t context = 0, kv_tokens = 0;
};

class PreparedServer {
 public:
  struct NamedAdapter {
    ServedAdapter served;
    LoraAdapter adapter;
  };
  // Opens everything, and then loads. Error(kUsage) where the cache that was asked for does not hold one
  // context.
  PreparedServer(const EngineFlags& flags, const GlobalOptions& globals, Compute compute);

  const LoadedModel& model() const { return model_; }
  const ServedModel& served() const { return served_; }
  const Room& room() const { return room_; }
  Backend& backend() const { return *placement_.backend; }
  const Engine& engine() const { return engine_; }
  // Once: `options` with the limits that follow from the model, on a thread of the caller's choice.
  ServeEnd serve(ServeOptions options, const std::function<void(int port)>& listening);

 private:
  EngineFlags flags_;
  LoadedModel model_;
  std::optional<LoadedModel> draft_;
  Room room_;
  Placement placement_;
  ServedModel served_;
  std::vector<NamedAdapter> opened_;  // until they are loaded
  Engine engine_;
  std::vector<ServedAdapter> adapters_;
  std::unique_ptr<Drafter> drafter_;
  ServingEngine answers_;
};

}  // namespace llmq::tools

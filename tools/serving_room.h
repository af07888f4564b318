// How much of a model's KV cache a server has, on its devices and, for answers that wait, on the host.
#pragma once
#include <cstdint>

#include "model/model_spec.h"
#include "runtime/engine.h"
#include "tools/flags/engine_flags.h"

namespace llmq::tools {

// Positions of the cache and of one context, from what was asked for, what the model has, and memory.
struct Room {
  std::int64_t context = 0, kv_tokens = 0, kv_window_tokens = 0;
};
// Error(kUsage) where the cache that was asked for does not hold one context.
Room room_for(const EngineFlags& flags, const GlobalOptions& globals, const ModelSpec& spec, Compute compute);

// Pages on the host for what is pushed out: none where this machine computes them sooner than it copies them.
void give_swap_space(const EngineFlags& flags, Engine& engine, SchedulerLimits& limits);

}  // namespace llmq::tools

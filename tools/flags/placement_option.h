// --gpu-layers and --tensor-parallel-size: which backends have which part of a model.
#pragma once
#include <optional>

#include "model/model_spec.h"
#include "runtime/engine.h"
#include "tools/command.h"

namespace llmq::tools {

struct PlacementFlags {
  std::optional<int> gpu_layers;
  std::int64_t members = 1;
};
void add_placement_options(CLI::App& command, PlacementFlags& flags);

// What an engine takes: its own backend, and the others for its options.
struct Placement {
  std::shared_ptr<Backend> backend;
  EarlyBlocks early;
  std::vector<std::shared_ptr<Backend>> further_members;
};
// Without --gpu-layers, and with as many as the model has or more, all of it is on --device; members are on
// the first devices of that kind. Error(kUsage) where --device names no device beside the CPU for some
// layers, or the model cannot be divided so. `use`: of a device that has all of it.
Placement placed(const PlacementFlags& flags, const GlobalOptions& globals, const ModelSpec& spec,
                 DeviceUse use = DeviceUse::kServing);

}  // namespace llmq::tools

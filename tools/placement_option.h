// --gpu-layers: how many blocks of a model the device of --device takes, while the CPU keeps the rest.
#pragma once
#include <optional>

#include "model/model_spec.h"
#include "runtime/engine.h"
#include "tools/command.h"

namespace llmq::tools {

CLI::Option* add_gpu_layers_option(CLI::App& command, std::optional<int>& layers);
// The backend of an engine, and the early blocks for its options: without --gpu-layers, and with as many as the model has or more, all of
// it is on --device. Error(kUsage) where --device names no device beside the CPU.
std::shared_ptr<Backend> placed_backend(EarlyBlocks& early, std::optional<int> layers, const GlobalOptions& globals, const ModelSpec& spec);

}  // namespace llmq::tools

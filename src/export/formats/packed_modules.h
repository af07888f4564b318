// The packed linears of a checkpoint as a plan would list them, from tensor names and quantization_config
// alone: no weight is read.
#pragma once
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "model/model_spec.h"
#include "tensor/planned_module.h"

namespace llmq {

struct PackedModules {
  std::string format;                  // "dense" or a name of packed_formats()
  std::vector<PlannedModule> modules;  // in written order; empty for a dense checkpoint
};
PackedModules read_packed_modules(const Checkpoint& checkpoint);

// The linears of the model's blocks that are not among `modules`.
std::vector<std::string> unpacked_linears(const ModelSpec& spec, std::span<const PlannedModule> modules);

// "w4a16_g64_asym" when all modules agree, else "mixed"; empty for none.
std::string common_scheme(std::span<const PlannedModule> modules);

}  // namespace llmq

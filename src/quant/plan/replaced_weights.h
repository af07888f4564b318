// Which tensors of the checkpoint packed ones take the place of.
#pragma once
#include <set>
#include <span>
#include <string>

#include "model/model_spec.h"
#include "tensor/planned_module.h"

namespace llmq {

// The dense weights of these modules, as the checkpoint calls them.
std::set<std::string> replaced_weights(std::span<const PlannedModule> modules, const ModelSpec& spec);

}  // namespace llmq

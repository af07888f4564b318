// Where a run keeps its activations so that it fits within a limit of memory and within its devices.
#pragma once
#include <string>

#include "quant/plan/plan.h"

namespace llmq {

// Settles that of a plan in the making, whose modules are known: the cheapest place is tried first.
// Error(kUsage) with what would do, where the run fits nowhere; `source`: the recipe's file; memory_limit 0:
// none.
void keep_within_limits(Plan& plan, const std::string& source, const Checkpoint& checkpoint,
                        const ModelSpec& spec, int threads, std::uint64_t memory_limit);

}  // namespace llmq

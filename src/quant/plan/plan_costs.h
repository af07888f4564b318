// What a plan costs: the parts of the peak of memory, bytes read and written, operations. Arithmetic on
// shapes; docs say how far it was off.
#pragma once
#include "quant/plan/plan.h"

namespace llmq {

// The most that a GGUF output of the model needs at once, where importance is collected over the plan's
// samples if it needs calibration: for the forward pass, for the file's vocabulary, and for rows on their
// way; `held` is beside each of them.
std::vector<MemoryItem> gguf_memory(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec,
                                    std::uint64_t held);
// Of the forward pass of one block over the plan's samples, times blocks.
double forward_flops(const Plan& plan, const ModelSpec& spec);

PlanCosts estimate_costs(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec, int threads);

}  // namespace llmq

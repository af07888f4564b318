// What a plan costs: the parts of the peak of memory, bytes read and written, operations. Arithmetic on
// shapes; docs say how far it was off.
#pragma once
#include "quant/plan.h"

namespace llmq {

void estimate_costs(Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec, int threads);

}  // namespace llmq

// Which linears of a vision tower are rounded, and how: what `vision: w8a16` asks for.
#pragma once
#include "quant/plan/plan.h"

namespace llmq {

// Fills plan.tower. Errors: kUsage where the model has no tower or a group does not divide; kUnsupported for
// other bits than 8, for inputs of 8 bits, and for a format that cannot say it.
void plan_tower(const Recipe& recipe, const Checkpoint& checkpoint, const ModelSpec& spec, Plan& plan);

}  // namespace llmq

// What is asked of a model whose blocks have something of other blocks, which a probe of bits and a second
// device do not have.
#pragma once
#include "quant/plan/plan.h"

namespace llmq {

// Error(kUnsupported) that names what is asked for.
void refuse_uncalibrated_blocks(const Recipe& recipe, const ModelSpec& spec, const Plan& plan);

}  // namespace llmq

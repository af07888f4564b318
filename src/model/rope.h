// What of a rope's table others need by itself.
#pragma once
#include "model/model_spec.h"

namespace llmq {

// By what longrope multiplies cos and sin: as given, or by how much longer the context became.
double longrope_attention_factor(const RopeSpec& rope);

}  // namespace llmq

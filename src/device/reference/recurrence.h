// The causal convolution and the gated delta rule of the reference (Backend::causal_conv, delta_rule).
#pragma once
#include "device/backend.h"

namespace llmq::reference {

void convolve(const TensorView& y, const TensorView& x, const TensorView& weight, const TensorView& before);
void apply_delta_rule(const TensorView& out, const TensorView& q, const TensorView& k, const TensorView& v,
                      const DeltaGates& gates, const TensorView& state, const DeltaHeads& heads);

}  // namespace llmq::reference

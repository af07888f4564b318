// Backend::causal_conv and delta_rule on the CPU.
#pragma once
#include "device/cpu/cpu_work.h"

namespace llmq {

void convolve(const CpuWork& work, const TensorView& y, const TensorView& x, const TensorView& weight,
              const TensorView& before);
void apply_delta_rule(const CpuWork& work, const TensorView& out, const TensorView& q, const TensorView& k,
                      const TensorView& v, const DeltaGates& gates, const TensorView& state,
                      const DeltaHeads& heads);

}  // namespace llmq

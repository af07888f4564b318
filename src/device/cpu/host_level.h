// The level whose kernels work on host memory, whatever backend runs.
#pragma once
#include "kernels/cpu/level.h"

namespace llmq {

const CpuKernels& host_level();

}  // namespace llmq

// Asks the processor (and through it the system: a set that is not saved on a switch does not count).
#include "kernels/cpu/level.h"

namespace llmq {

const CpuKernels* scalar_level() { return &kScalarKernels; }

const CpuKernels* avx2_level() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kAvx2Kernels : nullptr;
}

}  // namespace llmq

// Where the processor is not an x86-64: the scalar level alone.
#include "kernels/cpu/level.h"

namespace llmq {

const CpuKernels* scalar_level() { return &kScalarKernels; }
const CpuKernels* avx2_level() { return nullptr; }

}  // namespace llmq

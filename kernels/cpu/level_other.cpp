// Where the processor is not an x86-64: the scalar level alone.
#include "kernels/cpu/level.h"

namespace llmq {

const CpuKernels* scalar_level() { return &kScalarKernels; }
const CpuKernels* avx2_level() { return nullptr; }
const CpuKernels* avx512_level() { return nullptr; }
const CpuKernels* avx512_plain_level() { return nullptr; }
const CpuKernels* amx_level() { return nullptr; }
const CpuKernels* amx_emulated_level() { return nullptr; }
bool amx_present() { return false; }

}  // namespace llmq

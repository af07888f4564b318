// Where the levels with AVX-512 are not compiled: another kind of processor, or a build for a machine that
// lacks it.
#include "kernels/cpu/level.h"

namespace llmq {

const CpuKernels* avx512_level() { return nullptr; }
const CpuKernels* avx512_plain_level() { return nullptr; }
bool avx512_bf16_present() { return false; }
const CpuKernels* amx_level() { return nullptr; }
const CpuKernels* amx_emulated_level() { return nullptr; }
bool amx_present() { return false; }

}  // namespace llmq

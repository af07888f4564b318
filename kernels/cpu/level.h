// Which kernels this processor can run. Each table lives in an object compiled for its own instruction set.
#pragma once
#include "kernels/cpu/cpu_kernels.h"

namespace llmq {

extern const CpuKernels kScalarKernels;
extern const CpuKernels kAvx2Kernels;  // x86-64 builds only, as the next two
extern const CpuKernels kAvx512Kernels;
extern const CpuKernels kAvx512Bf16Kernels;

// Null where the processor (or the build) lacks the level. "avx512" means BF16 and VNNI instructions too
// where the processor has both.
const CpuKernels* scalar_level();
const CpuKernels* avx2_level();
const CpuKernels* avx512_level();
const CpuKernels* avx512_plain_level();  // without BF16 instructions: for tests
const CpuKernels* amx_level();
const CpuKernels* amx_emulated_level();  // the same bits without AMX, slowly: for tests
bool amx_present();                      // AMX-BF16 and -INT8, and the system saves its tiles

}  // namespace llmq

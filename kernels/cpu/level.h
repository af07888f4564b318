// Which kernels this processor can run. Each table lives in an object compiled for its own instruction set.
#pragma once
#include "kernels/cpu/cpu_kernels.h"

namespace llmq {

extern const CpuKernels kScalarKernels;
extern const CpuKernels kAvx2Kernels;  // x86-64 builds only, as what follows
extern const CpuKernels kAvx512Kernels;
// A function, since a table that is made as the program starts would run AVX-512 on every processor.
const CpuKernels& avx512_bf16_kernels() noexcept;

// Null where the processor (or the build) lacks the level. "avx512" means BF16 and VNNI instructions too
// where the processor has both.
const CpuKernels* scalar_level();
const CpuKernels* avx2_level();
const CpuKernels* avx512_level();
const CpuKernels* avx512_plain_level();  // without BF16 instructions: for tests
bool avx512_bf16_present();              // BF16 and VNNI, beside AVX-512
const CpuKernels* amx_level();
const CpuKernels* amx_emulated_level();  // the same bits without AMX, slowly: for tests
bool amx_present();                      // AMX-BF16 and -INT8, and the system saves its tiles

}  // namespace llmq

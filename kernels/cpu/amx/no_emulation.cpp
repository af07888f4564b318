// A build without what tests alone need (LLMQ_EMULATION=OFF).
#include "kernels/cpu/level.h"

namespace llmq {

const CpuKernels* amx_emulated_level() { return nullptr; }

}  // namespace llmq

// AVX-512 without BF16 and INT8 instructions: BF16 products are exact in FP32 FMAs, INT8 ones in INT16 pairs.
#include "kernels/cpu/avx512/vector.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/ops/kernel_table.h"

namespace llmq {

extern const CpuKernels kAvx512Kernels =
    kernel_table<Avx512, ProductBF16<Avx512>, ProductInt8<Avx512>, WideCodes<Avx512>>("avx512");

}  // namespace llmq

// The level "amx": AVX-512's kernels with BF16, and AMX's tiles for products with weights.
#include "kernels/cpu/amx/tile_table.h"

namespace llmq {

const CpuKernels* amx_level() {
  if (!avx512_bf16_present() || !amx_present()) return nullptr;
  static const CpuKernels kernels = with_tiles<AmxTiles>("amx");
  return &kernels;
}

}  // namespace llmq

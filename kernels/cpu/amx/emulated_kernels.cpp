// What the level "amx" computes, on processors without AMX: for tests.
#include "kernels/cpu/amx/emulated_tiles.h"
#include "kernels/cpu/amx/tile_table.h"

namespace llmq {

const CpuKernels* amx_emulated_level() {
  if (!avx512_bf16_present()) return nullptr;
  static const CpuKernels kernels = with_tiles<EmulatedTiles>("amx_emulated");
  return &kernels;
}

}  // namespace llmq

// The table of a level with tiles: AVX-512's, with the products of tiles in it.
#pragma once
#include "kernels/cpu/amx/tile_narrow.h"
#include "kernels/cpu/amx/tile_nibbles.h"
#include "kernels/cpu/amx/tile_products.h"

namespace llmq {
namespace {

template <class Tiles>
CpuKernels with_tiles(const char* name) {
  CpuKernels kernels = avx512_bf16_kernels();
  kernels.name = name;
  kernels.gemm[kBf16] = tile_gemm<Tiles, Pairs, 2>;
  kernels.gemm_groups[kBf16] = tile_gemm_groups<Tiles>;
  kernels.gemm_int8 = tile_gemm<Tiles, Quads, 1>;
  kernels.narrow_rows = 2 * kTileRows;
  kernels.narrow_gemm = tile_narrow_gemm<Tiles>;
  kernels.nibble_gemm = tile_nibble_gemm<Tiles>;
  return kernels;
}

}  // namespace
}  // namespace llmq

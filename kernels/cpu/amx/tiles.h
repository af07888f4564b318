// AMX's tile registers: eight of 16 rows x 64 bytes. What tile_products.h is written against;
// emulated_tiles.h is the other one.
//
//   multiply<Pairs>:  even_n = odd_n = 0; over the 16 pairs k of a row of A and of B's rows, in order:
//                       even_n = fma(a[2k], b[k][2n], even_n);  odd_n = fma(a[2k+1], b[k][2n+1], odd_n)
//                     c_n = c_n + (even_n + odd_n), denormals zero in and out       (Intel SDM, TDPBF16PS)
//   multiply<Quads>:  c_n = c_n + the sum of 64 products, signed by unsigned, modulo 2^32     (TDPBSUD)
//
// so a row of C depends on its own row of A alone, and on no number of rows. Plain assembler, because the
// compiler's intrinsics take tile numbers as literals only, and g++ 12 believes that LDTILECFG reads eight
// bytes.
#pragma once
#include <stdint.h>

#include "kernels/cpu/ops/unroll.h"

namespace llmq {

struct TileConfiguration {
  alignas(64) uint8_t palette = 1;
  uint8_t start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfiguration) == 64);

struct Pairs {};  // two BF16 numbers of 32 bits
struct Quads {};  // four codes of 32 bits

namespace {

struct AmxTiles {
  static LLMQ_INLINE void configure(const TileConfiguration& tiles) {
    asm volatile("ldtilecfg %0" : : "m"(tiles));
  }
  static LLMQ_INLINE void release() { asm volatile("tilerelease"); }
  template <int Tile>
  static LLMQ_INLINE void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(Tile));
  }
  template <int Tile>
  static LLMQ_INLINE void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(Tile) : "memory");
  }
  template <int Tile>
  static LLMQ_INLINE void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(Tile) : "memory");
  }
  template <int C, int A, int B>
  static LLMQ_INLINE void multiply(Pairs) {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
  template <int C, int A, int B>
  static LLMQ_INLINE void multiply(Quads) {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
};

}  // namespace
}  // namespace llmq

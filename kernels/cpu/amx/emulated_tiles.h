// tiles.h on processors without AMX, by AVX-512 and bit for bit: what a test of tile_products.h runs on. A
// tile lies in memory, the fused products of a row of B are 16 lanes.
#pragma once
#include <string.h>

#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/avx512/vector.h"

namespace llmq {
namespace {

struct EmulatedTile {
  alignas(64) unsigned char bytes[16][64];
};

struct EmulatedTiles {
  static inline thread_local TileConfiguration shape = {};
  static inline thread_local EmulatedTile tiles[8] = {};

  static void configure(const TileConfiguration& wanted) {
    shape = wanted;
    memset(tiles, 0, sizeof tiles);
  }
  static void release() { shape = {}; }
  template <int Tile>
  static void zero() {
    memset(&tiles[Tile], 0, sizeof tiles[Tile]);
  }
  template <int Tile>
  static void load(const void* from, int64_t stride) {
    zero<Tile>();
    for (int r = 0; r < shape.rows[Tile]; ++r)
      memcpy(tiles[Tile].bytes[r], static_cast<const unsigned char*>(from) + r * stride,
             shape.row_bytes[Tile]);
  }
  template <int Tile>
  static void store(void* to, int64_t stride) {
    for (int r = 0; r < shape.rows[Tile]; ++r)
      memcpy(static_cast<unsigned char*>(to) + r * stride, tiles[Tile].bytes[r], shape.row_bytes[Tile]);
  }
  template <int C, int A, int B>
  static void multiply(Pairs) {
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | _MM_FLUSH_ZERO_ON | 0x40u);  // and denormals are zero
    for (int r = 0; r < shape.rows[A]; ++r) multiply_pairs(tiles[C].bytes[r], tiles[A].bytes[r], tiles[B]);
    _mm_setcsr(mode);
  }
  template <int C, int A, int B>
  static void multiply(Quads) {
    for (int r = 0; r < shape.rows[A]; ++r) multiply_quads(tiles[C].bytes[r], tiles[A].bytes[r], tiles[B]);
  }

 private:
  // A call, so that no addition moves across the change of the mode.
  __attribute__((noinline)) static void multiply_pairs(unsigned char* c, const unsigned char* a,
                                                       const EmulatedTile& b) {
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    for (int k = 0; k < 16; ++k) {
      uint32_t pair;
      memcpy(&pair, a + 4 * k, sizeof pair);
      even = Avx512::fma(Avx512::set(float_from_bits(pair << 16)), Avx512::even_bf16(b.bytes[k]), even);
      odd = Avx512::fma(Avx512::set(float_from_bits(pair & 0xffff0000u)), Avx512::odd_bf16(b.bytes[k]), odd);
    }
    float* const sum = reinterpret_cast<float*>(c);
    Avx512::store(sum, Avx512::add(Avx512::load(sum), Avx512::add(even, odd)));
  }
  __attribute__((noinline)) static void multiply_quads(unsigned char* c, const unsigned char* a,
                                                       const EmulatedTile& b) {
    for (int n = 0; n < 16; ++n) {
      uint32_t sum;
      memcpy(&sum, c + 4 * n, sizeof sum);
      for (int k = 0; k < 64; ++k)
        sum += static_cast<uint32_t>(static_cast<int8_t>(a[k]) * b.bytes[k / 4][4 * n + k % 4]);
      memcpy(c + 4 * n, &sum, sizeof sum);
    }
  }
};

}  // namespace
}  // namespace llmq

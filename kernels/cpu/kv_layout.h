// Where a paged KV cache's elements lie on the CPU: as attention's products take them, so that a decoded
// token reads its past once, in order, and packs nothing.
//
// A block holds head after head, a head its positions in tiles of 16 (the last one maybe narrower), a unit
// being 4 bytes: two BF16 numbers or one FP32.
//   keys of a tile:   unit u of every position side by side, then unit u + 1; an odd last dimension by itself
//                     behind
//   values of a tile: two BF16 positions (one FP32) interleaved, dimension by dimension; an odd last position
//   behind
//
// Sixteen keys of a unit are a line of the cache and a register of AVX-512.
#pragma once
#include <stdint.h>

namespace llmq {

constexpr int64_t kSlotTile = 16;

struct KvLayout {
  int64_t block_size, kv_heads, head_dim, per_unit;

  // Of a head's tile of positions; `p` is a position's place in its block.
  int64_t tile(int64_t block, int64_t head, int64_t p) const {
    return ((block * kv_heads + head) * block_size + p / kSlotTile * kSlotTile) * head_dim;
  }
  int64_t width(int64_t p) const {
    const int64_t left = block_size - p / kSlotTile * kSlotTile;
    return left < kSlotTile ? left : kSlotTile;
  }
  int64_t key(int64_t block, int64_t head, int64_t p, int64_t d) const {
    const int64_t at = tile(block, head, p), n = p % kSlotTile, w = width(p),
                  whole = head_dim / per_unit * per_unit;
    return d < whole ? at + (d / per_unit * w + n) * per_unit + d % per_unit : at + whole * w + n;
  }
  int64_t value(int64_t block, int64_t head, int64_t p, int64_t d) const {
    const int64_t at = tile(block, head, p), n = p % kSlotTile, whole = width(p) / per_unit * per_unit;
    return n < whole ? at + (n / per_unit * head_dim + d) * per_unit + n % per_unit
                     : at + whole * head_dim + d;
  }
};

}  // namespace llmq

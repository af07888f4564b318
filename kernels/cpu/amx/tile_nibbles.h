// Products of INT8 rows with codes of 4 bits (kernels/cpu/ops/nibbles.h) in AMX's tiles: codes become panels
// of bytes in L1, and the sums of a group, exact as they are, go through memory to their scales.
//
// Up to 32 rows share one expansion. Fewer rows than a tile has meet AVX-512's product, in the same bits.
#pragma once
#include "kernels/cpu/amx/tile_products.h"
#include "kernels/cpu/ops/nibbles.h"

namespace llmq {
namespace {

// Up to 32 rows of INT8 against codes of 4 bits, of which kNarrowStep a column are expanded at once.
template <class Tiles, bool Two>
void multiply_nibbles(const NibbleProduct& p) {
  using Panel = PanelTiles<Tiles, Quads, Two>;
  alignas(64) unsigned char codes[kNarrowStep * kTilePanel];
  alignas(64) float sums[2 * kTileRows * kTilePanel], y[2 * kTileRows * kTilePanel];  // sums: INT32
  const NarrowLayout& layout = p.layout;
  Tiles::configure(tiles_for(p.rows));
  for (int64_t column = 0; column < p.columns; column += kTilePanel) {
    const unsigned char* group = p.b + column / kTilePanel * layout.panel_bytes(kTilePanel);
    take_rows(y, nullptr, 0, p.rows, kTilePanel);
    for (int64_t g = 0; g < layout.groups; ++g) {
      const unsigned char* words = group + layout.header_bytes(kTilePanel);
      Panel::zero();
      for (int64_t k = 0; k < layout.group; k += kNarrowStep) {
        const int64_t count = layout.group - k < kNarrowStep ? layout.group - k : kNarrowStep;
        for (int64_t i = 0; i < count; i += kNarrowBlock, words += kUnitBytes)
          for (int64_t n = 0; n < kUnitBytes; n += 64) {
            const auto quads = NibbleQuads<Avx512>::load(words + n);
            Avx512::storei(codes + i * kTilePanel + n, quads.first);
            Avx512::storei(codes + i * kTilePanel + kUnitBytes + n, quads.second);
          }
        Panel::add(RowBlock{p.a + g * layout.group + k, p.a_row, p.rows, false}, codes, count);
      }
      Panel::store(sums, kTilePanel);
      for (int64_t n = 0; n < kTilePanel; n += kTileColumns) {
        const NibbleGroupEnd<Avx512> end(layout, group, n);
        for (int64_t r = 0, at = n; r < p.rows; ++r, at += kTilePanel)
          Avx512::store(y + at, end.apply(Avx512::loadi(sums + at), p.sums[r * p.sums_row + g],
                                          Avx512::load(y + at), g == 0));
      }
      group = words;
    }
    for (int64_t r = 0; r < p.rows; ++r)
      for (int64_t n = 0; n < kTilePanel; n += kTileColumns)
        store_nibble_sums<Avx512>(p, r, column + n, Avx512::load(y + r * kTilePanel + n));
  }
  Tiles::release();
}

// `nibble_gemm` of the level: AVX-512's of fewer rows than fill a tile.
template <class Tiles>
void tile_nibble_gemm(const NibbleProduct& p) {
  NibbleProduct some = p;
  for (int64_t row = 0; row < p.rows; row += 2 * kTileRows) {
    some.rows = p.rows - row < 2 * kTileRows ? p.rows - row : 2 * kTileRows;
    some.a = p.a + row * p.a_row;
    some.c = p.c + row * p.c_row;
    some.sums = p.sums + row * p.sums_row;
    some.factors = p.factors + row;
    if (some.rows < kTileRows)
      avx512_bf16_kernels().nibble_gemm(some);
    else
      some.rows > kTileRows ? multiply_nibbles<Tiles, true>(some) : multiply_nibbles<Tiles, false>(some);
  }
}

}  // namespace
}  // namespace llmq

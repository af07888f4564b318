// Products of BF16 pairs and of INT8 quads in AMX's tiles, over the panels that every level has
// (cpu_kernels.h): a panel of 32 columns is two tiles side by side, unit for unit, and rows of A are tiles as
// they lie.
//
//   C = start or C; for each 16 units of the depth, in order: C = C (+) A tile x B tile
//   (tiles.h has the sum inside)
//
// A depth that does not fill the last tile meets zeros there. Nothing else enters a row's chain, so that one
// decoded row has the bits it has among thousands.
//
// Up to 32 rows at once: C takes four tiles, A two, B two; 4 products of 16 cycles follow 4 loads of 8. A
// panel's part of kBlockUnits units stays in L1 while the rows pass by from L2, and the sums wait in C.
#pragma once
#include <string.h>

#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/avx512/vector.h"
#include "kernels/cpu/level.h"

namespace llmq {
namespace {

constexpr int64_t kTileRows = 16, kTileUnits = 16, kTileColumns = 16, kTilePanel = 2 * kTileColumns;
constexpr int64_t kUnitBytes = kTilePanel * 4;  // of a panel
constexpr int64_t kBlockUnits = 192;            // 24 KiB of a panel
constexpr auto kBf16 = static_cast<int>(CpuFormat::kBF16);
constexpr int64_t kNarrowStep = 128;  // codes of a column that are expanded at once
static_assert(Avx512::kPanelVectors * Avx512::kLanes == kTilePanel);

// Tiles 0 to 3: C, by rows and columns; of up to 16 rows twice. 4, 5: A. 6, 7: B; of so many units along the
// depth.
inline TileConfiguration tiles_for(int64_t rows, int64_t units = kTileUnits) {
  TileConfiguration tiles;
  const int64_t above = rows < kTileRows ? rows : kTileRows, below = rows - above,
                second = below > 0 ? below : above;
  const int64_t counts[] = {above, above, second, second, above, below, units, units};
  for (int tile = 0; tile < 8; ++tile) {
    const bool of_a = tile == 4 || tile == 5;
    tiles.rows[tile] = static_cast<uint8_t>(counts[tile]);
    tiles.row_bytes[tile] = static_cast<uint16_t>(counts[tile] == 0 ? 0 : of_a ? 4 * units : 64);
  }
  return tiles;
}

// copy[r][u] = from[u][r] for 16 units of 4 bytes, by exchanges of neighbours, pairs, fours and eights.
__attribute__((noinline)) void turn_units(unsigned char* copy, const unsigned char* from, int64_t step,
                                          int64_t rows, int64_t units) {
  __m512i v[16], w[16];
  for (int u = 0; u < 16; ++u)
    v[u] = u < units ? Avx512::loadi_first(from + u * step, static_cast<int>(rows)) : Avx512::zeroi();
  for (int i = 0; i < 16; i += 2) {
    w[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    w[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      v[i + 2 * j] = _mm512_unpacklo_epi64(w[i + j], w[i + 2 + j]);
      v[i + 2 * j + 1] = _mm512_unpackhi_epi64(w[i + j], w[i + 2 + j]);
    }
  // v[4 i + j] has columns j, 4 + j, 8 + j, 12 + j of units 4 i to 4 i + 3, one to each quarter.
  for (int j = 0; j < 4; ++j) {
    const __m512i low = _mm512_shuffle_i32x4(v[j], v[4 + j], 0x88),
                  high = _mm512_shuffle_i32x4(v[8 + j], v[12 + j], 0x88);
    const __m512i low2 = _mm512_shuffle_i32x4(v[j], v[4 + j], 0xdd),
                  high2 = _mm512_shuffle_i32x4(v[8 + j], v[12 + j], 0xdd);
    Avx512::storei(copy + 64 * j, _mm512_shuffle_i32x4(low, high, 0x88));
    Avx512::storei(copy + 64 * (8 + j), _mm512_shuffle_i32x4(low, high, 0xdd));
    Avx512::storei(copy + 64 * (4 + j), _mm512_shuffle_i32x4(low2, high2, 0x88));
    Avx512::storei(copy + 64 * (12 + j), _mm512_shuffle_i32x4(low2, high2, 0xdd));
  }
}

// Rows of A, at most 32, and where their depth begins.
struct RowBlock {
  const unsigned char* a;
  int64_t step;  // bytes from row to row; transposed: from unit to unit
  int64_t rows;
  bool transposed;

  // 16 units from `unit` on, of which `bytes` are there, as whole tiles of 64 bytes a row; rows from 16 on at
  // copy + 1024.
  LLMQ_INLINE void copy_tiles(unsigned char* copy, int64_t unit, int64_t bytes) const {
    for (int64_t first = 0; first < rows; first += kTileRows, copy += kTileRows * 64) {
      const int64_t count = rows - first < kTileRows ? rows - first : kTileRows;
      if (transposed) {
        turn_units(copy, a + unit * step + 4 * first, step, count, bytes / 4);
        continue;
      }
      memset(copy, 0, kTileRows * 64);
      for (int64_t r = 0; r < count; ++r)
        memcpy(copy + r * 64, a + (first + r) * step + 4 * unit, static_cast<size_t>(bytes));
    }
  }
};

// C's tiles of up to 32 rows and one panel; of up to 16 rows there are two sets.
template <class Tiles, class Product, bool Two, int Set = 0>
struct PanelTiles {
  static_assert(Set == 0 || !Two);
  static constexpr int kLeft = 2 * Set, kRight = kLeft + 1;
  static LLMQ_INLINE void zero() {
    Tiles::template zero<kLeft>();
    Tiles::template zero<kRight>();
    if constexpr (Two) Tiles::template zero<2>(), Tiles::template zero<3>();
  }
  static LLMQ_INLINE void load(const float* c, int64_t row) {  // in elements, as c
    Tiles::template load<kLeft>(c, 4 * row);
    Tiles::template load<kRight>(c + kTileColumns, 4 * row);
    if constexpr (Two) {
      Tiles::template load<2>(c + kTileRows * row, 4 * row);
      Tiles::template load<3>(c + kTileRows * row + kTileColumns, 4 * row);
    }
  }
  static LLMQ_INLINE void store(float* c, int64_t row) {
    Tiles::template store<kLeft>(c, 4 * row);
    Tiles::template store<kRight>(c + kTileColumns, 4 * row);
    if constexpr (Two) {
      Tiles::template store<2>(c + kTileRows * row, 4 * row);
      Tiles::template store<3>(c + kTileRows * row + kTileColumns, 4 * row);
    }
  }
  static LLMQ_INLINE void step(const unsigned char* a, int64_t stride, const unsigned char* b) {
    Tiles::template load<6>(b, kUnitBytes);
    Tiles::template load<4>(a, stride);
    Tiles::template multiply<kLeft, 4, 6>(Product{});
    Tiles::template load<7>(b + 64, kUnitBytes);
    Tiles::template multiply<kRight, 4, 7>(Product{});
    if constexpr (Two) {
      Tiles::template load<5>(a + kTileRows * stride, stride);
      Tiles::template multiply<2, 5, 6>(Product{});
      Tiles::template multiply<3, 5, 7>(Product{});
    }
  }
  // Adds the products of `bytes` of each row with as many of a panel at b: units of 4, the last one perhaps
  // half. Tiles have `units` of them, all there are where these are fewer than kTileUnits.
  static LLMQ_INLINE void add(const RowBlock& rows, const unsigned char* b, int64_t bytes,
                              int64_t units = kTileUnits) {
    int64_t unit = 0;
    if (!rows.transposed)
      for (; 4 * (unit + units) <= bytes; unit += units)
        step(rows.a + 4 * unit, rows.step, b + unit * kUnitBytes);
    if (4 * unit < bytes) add_copies(rows, b, unit, bytes);
  }

 private:
  __attribute__((noinline)) static void add_copies(const RowBlock& rows, const unsigned char* b, int64_t unit,
                                                   int64_t bytes) {
    alignas(64) unsigned char copy[2 * kTileRows * 64], end_of_b[kTileUnits * kUnitBytes];
    for (; 4 * unit < bytes; unit += kTileUnits) {
      const int64_t left = bytes - 4 * unit < 64 ? bytes - 4 * unit : 64;
      const unsigned char* units = b + unit * kUnitBytes;
      if (left < 64) {
        memset(end_of_b, 0, sizeof end_of_b);
        memcpy(end_of_b, units, static_cast<size_t>((left + 3) / 4 * kUnitBytes));
        units = end_of_b;
      }
      rows.copy_tiles(copy, unit, left);
      step(copy, 64, units);
    }
  }
};

LLMQ_INLINE int columns_of(int64_t columns, int vector) {
  const int64_t left = columns - kTileColumns * vector;
  return static_cast<int>(left < 0 ? 0 : left < kTileColumns ? left : kTileColumns);
}

// What follows the sums of a group: GemmPanel's scale, offset and row sums.
struct GroupEnd {
  const float* scale;
  const float* offset;
  const float* row_sums;
  int64_t row_sums_row;
};

// y = fma(sums, scale, fma(row sum, offset, y)), rows of kTilePanel.
LLMQ_INLINE void add_scaled(float* y, const float* sums, const GroupEnd& end, int64_t rows) {
  for (int v = 0; v < kTilePanel; v += kTileColumns) {
    const auto factor = Avx512::load(end.scale + v);
    const auto offset = end.offset == nullptr ? Avx512::set(0.0f) : Avx512::load(end.offset + v);
    for (int64_t r = 0, at = v; r < rows; ++r, at += kTilePanel) {
      auto from = Avx512::load(y + at);
      if (end.offset != nullptr)
        from = Avx512::fma(Avx512::set(end.row_sums[r * end.row_sums_row]), offset, from);
      Avx512::store(y + at, Avx512::fma(Avx512::load(sums + at), factor, from));
    }
  }
}

// Where each row of y, at most 32 of one panel, begins: from + r from_row, or 0. And back.
LLMQ_INLINE void take_rows(float* y, const float* from, int64_t from_row, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r)
    for (int v = 0; v < 2; ++v)
      Avx512::store(y + r * kTilePanel + v * kTileColumns,
                    from == nullptr
                        ? Avx512::set(0.0f)
                        : Avx512::load_first(from + r * from_row + v * kTileColumns, columns_of(columns, v)));
}
LLMQ_INLINE void put_rows(float* c, int64_t c_row, const float* y, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r)
    for (int v = 0; v < 2; ++v)
      Avx512::store_first(c + r * c_row + v * kTileColumns,
                          Avx512::load(y + r * kTilePanel + v * kTileColumns), columns_of(columns, v));
}

// Rows [first, first + rows) against one panel, g.columns of it, and units [from, to) of the depth.
template <class Tiles, class Product, bool Two>
__attribute__((noinline)) void multiply_panel(const GemmPanel& g, int64_t first, int64_t rows,
                                              int64_t depth_bytes, int64_t from, int64_t to) {
  using Panel = PanelTiles<Tiles, Product, Two>;
  alignas(64) float sums[2 * kTileRows * kTilePanel];
  float* const c = g.c + first * g.c_row;
  const bool whole = g.columns == kTilePanel, again = g.accumulate || from > 0;
  const float* const begin = again ? c : g.start;
  const int64_t begin_row = again ? g.c_row : 0;

  if (begin == nullptr) {
    Panel::zero();
  } else if (whole) {
    Panel::load(begin, begin_row);
  } else {
    take_rows(sums, begin, begin_row, rows, g.columns);
    Panel::load(sums, kTilePanel);
  }
  const auto* const a = static_cast<const unsigned char*>(g.a);
  const RowBlock block{g.transposed ? a + 4 * first + from * g.a_row : a + first * g.a_row + 4 * from,
                       g.a_row, rows, g.transposed};
  Panel::add(block, static_cast<const unsigned char*>(g.b) + from * kUnitBytes,
             (4 * to < depth_bytes ? 4 * to : depth_bytes) - 4 * from);
  if (whole) return Panel::store(c, g.c_row);
  Panel::store(sums, kTilePanel);
  put_rows(c, g.c_row, sums, rows, g.columns);
}

// Rows [first, end), `block` at a time, against all panels.
template <class Tiles, class Product, bool Two>
void multiply_rows(const GemmPanel& g, int64_t depth_bytes, int64_t first, int64_t end, int64_t block) {
  const int64_t units = (depth_bytes + 3) / 4, step = end - first <= block ? units : kBlockUnits;
  Tiles::configure(tiles_for(block));
  GemmPanel one = g;
  for (int64_t n = 0; n < g.columns; n += kTilePanel) {
    one.b = static_cast<const unsigned char*>(g.b) + n / kTilePanel * g.b_panel;
    one.c = g.c + n;
    one.start = g.start == nullptr ? nullptr : g.start + n;
    one.columns = g.columns - n < kTilePanel ? g.columns - n : kTilePanel;
    int64_t from = 0;
    do {
      const int64_t to = units - from < step ? units : from + step;
      for (int64_t row = first; row < end; row += block)
        multiply_panel<Tiles, Product, Two>(one, row, block, depth_bytes, from, to);
      from = to;
    } while (from < units);
  }
  Tiles::release();
}

// use(Index of whether a block takes two tiles of rows, first, end, rows of a block): whole blocks, then what
// is left.
template <class Use>
LLMQ_INLINE void by_blocks(int64_t rows, const Use& use) {
  constexpr int64_t kMost = 2 * kTileRows;
  const int64_t many = rows / kMost * kMost, left = rows - many;
  if (many > 0) use(Index<1>{}, 0, many, kMost);
  if (left > kTileRows)
    use(Index<1>{}, many, rows, left);
  else if (left > 0)
    use(Index<0>{}, many, rows, left);
}

// `gemm` of the level; an element has 2 bytes for Pairs, 1 for Quads.
template <class Tiles, class Product, int64_t Element>
void tile_gemm(const GemmPanel& g) {
  by_blocks(g.rows, [&](auto two, int64_t first, int64_t end, int64_t block) {
    multiply_rows<Tiles, Product, decltype(two)::value != 0>(g, g.depth * Element, first, end, block);
  });
}

// Rows [first, end) of one panel, `block` at a time, group after group: sums of one group are scaled while
// the tiles make the next.
template <class Tiles, bool Two>
void multiply_groups(const GemmPanel& g, int64_t group, int64_t first, int64_t end, int64_t block) {
  using Panel = PanelTiles<Tiles, Pairs, Two>;
  alignas(64) float sums[2][2 * kTileRows * kTilePanel], y[2 * kTileRows * kTilePanel];
  Tiles::configure(tiles_for(block));
  for (int64_t row = first; row < end; row += block) {
    float* const c = g.c + row * g.c_row;
    take_rows(y, g.accumulate ? c : g.start, g.accumulate ? g.c_row : 0, block, g.columns);
    const auto end_of = [&](int64_t i) {
      const bool offset = g.offset != nullptr;
      return GroupEnd{g.scale + i * kTilePanel, offset ? g.offset + i * kTilePanel : nullptr,
                      offset ? g.row_sums + row * g.row_sums_row + i : nullptr, g.row_sums_row};
    };
    int64_t i = 0;
    for (int64_t k = 0; k < g.depth; k += group, ++i) {
      Panel::zero();
      const RowBlock rows{static_cast<const unsigned char*>(g.a) + row * g.a_row + 2 * k, g.a_row, block,
                          false};
      Panel::add(rows, static_cast<const unsigned char*>(g.b) + i * g.b_panel, 2 * group);
      if (i > 0) add_scaled(y, sums[(i - 1) & 1], end_of(i - 1), block);
      Panel::store(sums[i & 1], kTilePanel);
    }
    if (i > 0) add_scaled(y, sums[(i - 1) & 1], end_of(i - 1), block);
    put_rows(c, g.c_row, y, block, g.columns);
  }
  Tiles::release();
}

// `gemm_groups` of the level.
template <class Tiles>
void tile_gemm_groups(const GemmPanel& g, int64_t group) {
  by_blocks(g.rows, [&](auto two, int64_t first, int64_t end, int64_t block) {
    multiply_groups<Tiles, decltype(two)::value != 0>(g, group, first, end, block);
  });
}

}  // namespace
}  // namespace llmq

// The columns of a block (at most 128) of GPTQ, of group descent, of triangular solves and of trials, one after another, as
// kernels/common/row_tile.h says: the same operations in the same order as kernels/cpu/ops/tile.h, one IEEE operation or fused
// multiply-add each, so that codes are the CPU's bit for bit.
//
// Arrays are [columns][rows] over all rows of a weight. A block takes 32 rows; what they carry stays in shared memory. Stages for each
// eight columns, a thread of the first warp being a row:
//   chain   e_k from carried_k, then carried_j += e_k factors[k][j] for the later ones of the eight, in registers
//   rest    carried_j += e_k factors[k][j] for k = the eight, rising, and each later column j, a warp every fourth column
// Cost: rows * columns^2 / 2 fused multiply-adds; no row waits for another.
#pragma once
#include "kernels/common/row_tile.h"
#include "kernels/cuda/block.h"

namespace llmq::cuda {

// Of two operands the second where either is NaN, as the CPU's.
LLMQ_BLOCK float tile_min(float a, float b) { return a < b ? a : b; }
LLMQ_BLOCK float tile_max(float a, float b) { return a > b ? a : b; }

// round(v / scale), ties to even, kept where code = steps + zero lies in 0 .. top.
LLMQ_BLOCK float tile_steps(float v, float scale, float zero, float top) {
  const float magic = 12582912.0f, nearest = (v / scale + magic) - magic;  // 1.5 * 2^23 leaves no fraction bits
  return tile_min(top - zero, tile_max(0.0f - zero, nearest));
}

// apply: what the column does at element `at`, its scale at `g`, from what it carries; returns e_k.
struct RoundColumn {
  static LLMQ_BLOCK float apply(const TileColumns& t, int64_t, int64_t at, int64_t g, int64_t, float carried) {
    const float w = t.weight[at], scale = t.scale[g], steps = tile_steps(w + carried, scale, t.zero[g], t.top);
    const float e = w - steps * scale;
    t.steps[at] = steps;
    t.difference[at] = e;
    return e;
  }
};

struct DescendColumn {
  static LLMQ_BLOCK float apply(const TileColumns& t, int64_t k, int64_t at, int64_t g, int64_t, float carried) {
    const float scale = t.scale[g], value = t.steps[at] * scale;
    const float steps = tile_steps(fmaf(carried, t.inverse[k], value), scale, t.zero[g], t.top), fresh = steps * scale;
    t.steps[at] = steps;
    t.difference[at] = t.weight[at] - fresh;
    return value - fresh;
  }
};

struct TryColumn {
  static LLMQ_BLOCK float apply(const TileColumns& t, int64_t k, int64_t at, int64_t g, int64_t row, float carried) {
    const float w = t.weight[at], v = w + carried, value = tile_steps(v, t.scale[g], t.zero[g], t.top) * t.scale[g], left = v - value;
    t.loss[row] = fmaf(left * t.cost[k], left, t.loss[row]);
    return w - value;
  }
};

struct SolveColumn {
  static LLMQ_BLOCK float apply(const TileColumns& t, int64_t, int64_t at, int64_t, int64_t, float carried) {
    t.difference[at] = 0.0f - carried;
    return 0.0f - carried;
  }
};

template <class Column>
struct TileRounding {
  static constexpr int kThreads = 128, kRows = 32, kMostColumns = 128, kAhead = 8, kWarps = kThreads / kRows;
  struct Arguments {
    TileColumns tile;  // columns <= kMostColumns; pointers are the device's
    int64_t rows = 0;
  };
  struct Shared {
    Array<float, kMostColumns * kRows> carried;
    Array<float, kAhead * kRows> errors;
  };

  static Grid grid(const Arguments& a) { return {blocks_for(a.rows, kRows)}; }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const TileColumns& tile = a.tile;
    const int64_t first_row = int64_t{block.x} * kRows;
    block.each([&](int t) { each_carried(a, first_row, t, 0, [&](int64_t, int at, float& global) { shared.carried.set(t, at, global); }); });
    block.barrier();
    for (int64_t first = 0; first < tile.columns; first += kAhead) {
      block.each([&](int t) {
        if (t < kRows && first_row + t < a.rows) chain(a, shared, first, first_row + t, t);
      });
      block.barrier();
      block.each([&](int t) {
        each_carried(a, first_row, t, first + kAhead, [&](int64_t j, int at, float&) {
          float sum = shared.carried.get(t, at);
          LLMQ_UNROLL
          for (int k = 0; k < kAhead; ++k) sum = fmaf(tile.factors[(first + k) * tile.factor_row + j], shared.errors.get(t, k * kRows + t % kRows), sum);
          shared.carried.set(t, at, sum);
        });
      });
      block.barrier();
    }
    block.each([&](int t) { each_carried(a, first_row, t, 0, [&](int64_t, int at, float& global) { global = shared.carried.get(t, at); }); });
  }

 private:
  // use(column, place in shared memory, place in device memory) for the columns from `first` on that are this thread's.
  template <class Use>
  static LLMQ_BLOCK void each_carried(const Arguments& a, int64_t first_row, int t, int64_t first, const Use& use) {
    const int64_t row = first_row + t % kRows;
    if (row >= a.rows) return;
    for (int64_t j = first + t / kRows; j < a.tile.columns; j += kWarps)
      use(j, static_cast<int>(j * kRows + t % kRows), a.tile.carried[j * a.rows + row]);
  }

  static LLMQ_BLOCK void chain(const Arguments& a, Shared& shared, int64_t first, int64_t row, int t) {
    const TileColumns& tile = a.tile;
    float carried[kAhead];
    LLMQ_UNROLL
    for (int k = 0; k < kAhead; ++k) carried[k] = first + k < tile.columns ? shared.carried.get(t, static_cast<int>((first + k) * kRows + t)) : 0.0f;
    LLMQ_UNROLL
    for (int k = 0; k < kAhead; ++k) {
      const int64_t column = first + k;
      if (column >= tile.columns) return;
      const int64_t g = tile.group == nullptr ? 0 : tile.group[column] * a.rows + row;
      const float e = Column::apply(tile, column, column * a.rows + row, g, row, carried[k]);
      shared.errors.set(t, k * kRows + t, e);
      shared.carried.set(t, static_cast<int>(column * kRows + t), carried[k]);
      LLMQ_UNROLL
      for (int j = k + 1; j < kAhead; ++j)
        if (first + j < tile.columns) carried[j] = fmaf(tile.factors[column * tile.factor_row + first + j], e, carried[j]);
    }
  }
};

}  // namespace llmq::cuda

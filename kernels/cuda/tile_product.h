// c[m][n] = (c[m][n] or 0) + sum_k a[k][m] b[k][n] of FP32 numbers: one chain of fused multiply-adds over k
// in order for every element, with the bits of product.h, whatever the tile. GPTQ's products of columns with
// rows, and Gram matrices of FP32 inputs (a and b are both x).
//
// Taken are operands whose rows can be copied 16 bytes at a time (is_aligned); product.h takes everything
// else.
//
// A block of 128 threads computes kRows x 128 elements, a thread kRows / 8 x 8: vectors of four neighbours,
// 16 rows and 32 columns apart, so that a warp's read of shared memory meets no bank twice. Stages, over
// tiles of 16 depths in a ring of kStages, 0 beyond the edges:
//   fill      copies of a's and b's tiles to shared memory start
//   multiply  each depth: a thread's numbers of a and of b are read, all pairs are multiplied
// Neighbouring blocks share columns of b: GPTQ's a has 128 rows at most, so b comes from memory once. Cost:
// rows * columns * depth fused multiply-adds, of whole tiles. Each depth is 64 of them for 4 vector reads of
// shared memory (32 rows: 32 for 3). For sm_90a a stage is 1,169 instructions: 1,024 multiply-adds, 64 reads,
// 81 for copies and the loop (32 rows: 635, 512, 48 and 75), in 127 (93) registers.
#pragma once
#include "kernels/cuda/block.h"

namespace llmq::cuda {

// Pointers are of the device; a row of a and of b is a depth.
struct TileProductArguments {
  int64_t rows = 0, columns = 0, depth = 0;
  float* c = nullptr;
  int64_t c_row = 0;
  const float* a = nullptr;
  int64_t a_row = 0;
  const float* b = nullptr;
  int64_t b_row = 0;
  bool accumulate = false;  // from what c holds
  bool upper = false;       // only columns >= the row
};

inline bool is_aligned(const TileProductArguments& a) {
  const auto begins = [](const float* values) { return reinterpret_cast<uintptr_t>(values) % 16 == 0; };
  return begins(a.a) && begins(a.b) && a.a_row % 4 == 0 && a.b_row % 4 == 0 && a.rows % 4 == 0 &&
         a.columns % 4 == 0;
}

template <int kTileRows>
struct TileProduct {
  using Arguments = TileProductArguments;
  static constexpr int kRows = kTileRows, kColumns = 128, kDepth = 16, kStages = 4, kThreads = 128;
  static constexpr int kHigh = kRows / 8, kWide = 8;  // of a thread
  struct Shared {
    Array<float, kStages * kDepth * kRows> a;
    Array<float, kStages * kDepth * kColumns> b;
  };
  static_assert(kRows % 32 == 0 && sizeof(float) * kStages * kDepth * (kRows + kColumns) <= 48 * 1024);
  struct Sums {
    float v[kHigh][kWide];
  };

  static Grid grid(const Arguments& a) {
    return {blocks_for(a.rows, kRows), static_cast<int>(blocks_for(a.columns, kColumns))};
  }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared& shared) {
    if (a.upper && first_column(block) + kColumns <= first_row(block)) return;
    const int tiles = static_cast<int>(blocks_for(a.depth, kDepth));
    PerThread<Sums, kThreads> sums;
    block.each([&](int t) {
      each_sum(block, a, sums[t], t,
               [&](float& sum, const float* c) { sum = a.accumulate && c != nullptr ? *c : 0.0f; });
    });
    for (int tile = 0; tile < kStages - 1; ++tile) fill(block, a, shared, tile, tiles);
    for (int tile = 0; tile < tiles; ++tile) {
      // This tile has arrived for all, and all are done with the tile whose place is filled next.
      block.template wait_copies<kStages - 2>();
      block.barrier();
      fill(block, a, shared, tile + kStages - 1, tiles);
      block.each([&](int t) { multiply(sums[t], shared, tile % kStages, t); });
    }
    block.template wait_copies<0>();
    block.each([&](int t) {
      each_sum(block, a, sums[t], t, [](float& sum, float* c) {
        if (c != nullptr) *c = sum;
      });
    });
  }

 private:
  static LLMQ_BLOCK int64_t first_row(const Block<kThreads>& block) { return int64_t{block.x} * kRows; }
  static LLMQ_BLOCK int64_t first_column(const Block<kThreads>& block) { return int64_t{block.y} * kColumns; }

  // Of the tile: a warp has half of the rows and half of the columns. Its lanes lie so that lane ^ 1 reads
  // the same of b and lane ^ 2 the same of a: half a warp at most 128 bytes.
  static LLMQ_BLOCK int row_of(int t, int i) {
    return t / 64 * (kRows / 2) + i / 4 * 16 + (t / 16 % 2 * 2 + t % 2) * 4 + i % 4;
  }
  static LLMQ_BLOCK int column_of(int t, int j) {
    return t / 32 % 2 * 64 + j / 4 * 32 + t / 2 % 8 * 4 + j % 4;
  }

  // use(sum, its place in c, or null where there is none)
  template <class Use>
  static LLMQ_BLOCK void each_sum(const Block<kThreads>& block, const Arguments& a, Sums& sums, int t,
                                  const Use& use) {
    LLMQ_UNROLL
    for (int i = 0; i < kHigh; ++i) LLMQ_UNROLL
    for (int j = 0; j < kWide; ++j) {
      const int64_t m = first_row(block) + row_of(t, i), n = first_column(block) + column_of(t, j);
      use(sums.v[i][j],
          m < a.rows && n < a.columns && (!a.upper || n >= m) ? a.c + m * a.c_row + n : nullptr);
    }
  }

  static LLMQ_BLOCK void fill(const Block<kThreads>& block, const Arguments& a, Shared& shared, int tile,
                              int tiles) {
    if (tile < tiles)
      block.each([&](int t) {
        copy<kRows>(shared.a, a.a, a.a_row, first_row(block), a.rows, a.depth, tile, t);
        copy<kColumns>(shared.b, a.b, a.b_row, first_column(block), a.columns, a.depth, tile, t);
      });
    block.commit_copies();
  }
  template <int kWidth>
  static LLMQ_BLOCK void copy(Array<float, kStages * kDepth * kWidth>& to, const float* from, int64_t row,
                              int64_t first, int64_t end, int64_t depth, int tile, int t) {
    constexpr int kVectors = kWidth / 4, kAtOnce = kThreads / kVectors;
    const int64_t k0 = int64_t{tile} * kDepth, left = depth - k0, at = first + t % kVectors * 4;
    // there are
    const int own = t / kVectors, depths = at >= end ? 0 : left < kDepth ? static_cast<int>(left) : kDepth;
    const float* const own_from = from + (k0 + own) * row + at;  // beyond the edges only the address is made
    LLMQ_UNROLL
    for (int i = 0; i < kDepth; i += kAtOnce)
      to.copy_async(t, (tile % kStages * kDepth + own + i) * kWidth + t % kVectors * 4, own_from + i * row,
                    own + i < depths);
  }

  static LLMQ_BLOCK void multiply(Sums& sums, const Shared& shared, int stage, int t) {
    LLMQ_UNROLL
    for (int k = stage * kDepth; k < (stage + 1) * kDepth; ++k) {
      float a[kHigh], b[kWide];
      LLMQ_UNROLL
      for (int i = 0; i < kHigh; i += 4) shared.a.get4(t, k * kRows + row_of(t, i), a + i);
      LLMQ_UNROLL
      for (int j = 0; j < kWide; j += 4) shared.b.get4(t, k * kColumns + column_of(t, j), b + j);
      LLMQ_UNROLL
      for (int i = 0; i < kHigh; ++i) LLMQ_UNROLL
      for (int j = 0; j < kWide; ++j) sums.v[i][j] = fmaf(a[i], b[j], sums.v[i][j]);
    }
  }
};

// 64 rows, or 32 where there are so few tiles of 64 that they would leave many of a device's processors
// without one. start.operator()<Kernel>(arguments) starts one, on a device or in the emulation.
template <class Start>
int start_tile_product(const TileProductArguments& a, const Start& start) {
  constexpr int64_t kFewTiles = 64;
  const bool few =
      blocks_for(a.rows, TileProduct<64>::kRows) * blocks_for(a.columns, TileProduct<64>::kColumns) <=
      kFewTiles;
  return few ? start.template operator()<TileProduct<32>>(a) : start.template operator()<TileProduct<64>>(a);
}

}  // namespace llmq::cuda

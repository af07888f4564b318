// y[m][n] = factor sum_k x[m][k] sx(m, k) w[n][k] sw(n, k) + bias[n], of E2M1 codes and of scales of a byte
// for each 16 (E4M3) or 32 columns (exponents) on both sides, by the matrix units that take both from
// registers: sm_120a. Those of the sm_100 family: tensor_memory/float4_tensor_linear.h.
//
// Products of two codes and two scales are exact; a matrix unit adds 64 of them to an FP32 sum in an order of
// its own, and instructions follow one another along k. So element (m, n) is one chain of instructions
// whatever the shape of a block, and row m of y is a function of row m of x. What a unit keeps of a sum is
// tried on each device before it is used (device/cuda/float4_trial.cpp).
//
// The eight codes of a word lie in the order of FragmentLayout on both sides, which is no order of k: all of
// a word belong to one group, and a sum does not ask.
//
// A block computes kRows x 128, a warp kRows x 32. Stages, over spans of 64 positions in a ring of kStages:
//   fill      copies of codes and scales of both sides to shared memory start
//   multiply  fragments are read, one instruction for each 16 x 8 elements
// Cost: rows * padded features * positions products; a weight is read once per block of rows.
#pragma once
#include "kernels/cuda/block.h"
#include "kernels/cuda/float4_arguments.h"

namespace llmq::cuda {

LLMQ_BLOCK int64_t padded_features(const Float4Arguments& a) { return blocks_for(a.features, 64) * 64; }
LLMQ_BLOCK void store_float4(const Float4Arguments& a, int64_t m, int64_t n, float sum) {
  if (m >= a.rows || n >= a.features) return;
  a.y[m * a.y_stride + n] = fmaf(sum, a.factor, a.bias == nullptr ? 0.0f : a.bias[n]);
}

template <bool kExponents, int kRowTiles>
struct Float4Linear {
  using Arguments = Float4Arguments;
  static constexpr int kSpan = 64, kStages = 4, kWarps = 4, kThreads = kWarps * kWarp;
  // of a warp: 16 rows, 16 features, 8 features each
  static constexpr int kPairs = 2, kHalves = 2 * kPairs;
  static constexpr int kRows = 16 * kRowTiles, kFeatureTiles = kPairs * kWarps,
                       kFeatures = 16 * kFeatureTiles;
  // 4 words on: 16 bytes of eight rows lie in different banks
  static constexpr int kRowWords = kSpan / 8, kRowStride = kRowWords + 4, kTileWords = kWarp * 4;
  struct Shared {
    Array<uint32_t, kStages * kRows * kRowStride> x;
    Array<uint32_t, kStages * kFeatureTiles * kTileWords> w;
    Array<uint32_t, kStages * kRows> x_scales;
    Array<uint32_t, kStages * kFeatures> w_scales;
  };
  static_assert(4 * kStages * (kRows * (kRowStride + 1) + kFeatureTiles * kTileWords + kFeatures) <=
                48 * 1024);
  struct Registers {
    Sums sums[kRowTiles][kHalves];
    FragmentA a[kRowTiles];
    FragmentB b[kHalves];
    uint32_t a_scale[kRowTiles], b_scale[kHalves];
  };
  using Threads = PerThread<Registers, kThreads>;

  static Grid grid(const Arguments& a) {
    if (a.rows == 0) return {0};
    return {blocks_for(a.features, kFeatures), static_cast<int>(blocks_for(a.rows, kRows))};
  }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const int spans = static_cast<int>(a.positions / kSpan);
    Threads threads;
    block.each([&](int t) {
      LLMQ_UNROLL
      for (int i = 0; i < kRowTiles; ++i) LLMQ_UNROLL
      for (int half = 0; half < kHalves; ++half) LLMQ_UNROLL
      for (int e = 0; e < 4; ++e) threads[t].sums[i][half].v[e] = 0;
    });
    for (int span = 0; span < kStages - 1; ++span) fill(block, a, shared, span, spans);
    for (int span = 0; span < spans; ++span) {
      // This span has arrived for all, and all are done with the span whose place is filled next.
      block.template wait_copies<kStages - 2>();
      block.barrier();
      fill(block, a, shared, span + kStages - 1, spans);
      block.converge();
      multiply(block, shared, threads, span);
    }
    block.template wait_copies<0>();
    block.each([&](int t) { store(block, a, threads[t], t); });
  }

 private:
  static LLMQ_BLOCK int64_t first_row(const Block<kThreads>& block) { return int64_t{block.y} * kRows; }
  static LLMQ_BLOCK int64_t first_tile(const Block<kThreads>& block) {
    return int64_t{block.x} * kFeatureTiles;
  }
  static LLMQ_BLOCK int warp_tile(int t) { return t / kWarp * kPairs; }

  static LLMQ_BLOCK void fill(Block<kThreads>& block, const Arguments& a, Shared& shared, int span,
                              int spans) {
    if (span < spans)
      block.each([&](int t) {
        const int stage = span % kStages;
        fill_codes(block, a, shared, t, span, stage);
        fill_scales(block, a, shared, t, span / (kExponents ? 2 : 1), stage);
      });
    block.commit_copies();
  }

  static LLMQ_BLOCK void fill_codes(const Block<kThreads>& block, const Arguments& a, Shared& shared, int t,
                                    int span, int stage) {
    for (int i = t; i < kRows * 2; i += kThreads) {
      const int64_t row = first_row(block) + i / 2;
      shared.x.copy_async_near(t, (stage * kRows + i / 2) * kRowStride + i % 2 * 4,
                               a.x + (row * (a.positions / 8) + span * kRowWords + i % 2 * 4), row < a.rows);
    }
    LLMQ_UNROLL
    for (int i = t; i < kFeatureTiles * kWarp; i += kThreads) {
      const int64_t tile = first_tile(block) + i / kWarp;
      shared.w.copy_async(t, stage * kFeatureTiles * kTileWords + i * 4,
                          a.weight + ((tile * (a.positions / kSpan) + span) * kTileWords + i % kWarp * 4),
                          tile * 16 < padded_features(a));
    }
  }

  static LLMQ_BLOCK void fill_scales(const Block<kThreads>& block, const Arguments& a, Shared& shared, int t,
                                     int word, int stage) {
    if (t < kRows / 4) {
      const int64_t row = first_row(block) + t * 4;
      shared.x_scales.copy_async(t, stage * kRows + t * 4, a.x_scales + (word * padded_scales(a.rows) + row),
                                 row < a.rows);
    }
    if (t < kFeatures / 4) {
      const int64_t feature = first_tile(block) * 16 + t * 4;
      shared.w_scales.copy_async(t, stage * kFeatures + t * 4,
                                 a.weight_scales + (word * padded_features(a) + feature),
                                 feature < padded_features(a));
    }
  }

  static LLMQ_BLOCK void multiply(Block<kThreads>& block, const Shared& shared, Threads& threads, int span) {
    const int stage = span % kStages, shift = kExponents ? span % 2 * 16 : 0;
    LLMQ_UNROLL
    for (int i = 0; i < kRowTiles; ++i)
      block.template load_matrices<false>([&](int t) -> uint32_t* { return threads[t].a[i].v; }, shared.x,
                                          [&](int t) {
                                            const int lane = t % kWarp, row = i * 16 + lane % 16;
                                            return (stage * kRows + row) * kRowStride + lane / 16 * 4;
                                          });
    block.each([&](int t) {
      Registers& r = threads[t];
      const int lane = t % kWarp;
      LLMQ_UNROLL
      for (int i = 0; i < kRowTiles; ++i)  // of lanes 0 and 1 of four; the others' are not asked for
        r.a_scale[i] = shared.x_scales.get(t, stage * kRows + i * 16 + lane % 2 * 8 + lane / 4) >> shift;
      LLMQ_UNROLL
      for (int pair = 0; pair < kPairs; ++pair) {
        uint32_t words[4];
        shared.w.get4(t, (stage * kFeatureTiles + warp_tile(t) + pair) * kTileWords + lane * 4, words);
        LLMQ_UNROLL
        for (int half = 0; half < 2; ++half) {
          r.b[pair * 2 + half] = {{words[half * 2], words[half * 2 + 1]}};
          r.b_scale[pair * 2 + half] =
              shared.w_scales.get(t, stage * kFeatures + (warp_tile(t) + pair) * 16 + half * 8 + lane / 4) >>
              shift;
        }
      }
    });
    LLMQ_UNROLL
    for (int i = 0; i < kRowTiles; ++i) LLMQ_UNROLL
    for (int half = 0; half < kHalves; ++half)
      block.template multiply_float4<kExponents>(
          [&](int t) -> Sums& { return threads[t].sums[i][half]; },
          [&](int t) -> const FragmentA& { return threads[t].a[i]; },
          [&](int t) -> const FragmentB& { return threads[t].b[half]; },
          [&](int t) { return threads[t].a_scale[i]; }, [&](int t) { return threads[t].b_scale[half]; });
  }

  static LLMQ_BLOCK void store(const Block<kThreads>& block, const Arguments& a, const Registers& r, int t) {
    const int lane = t % kWarp;
    LLMQ_UNROLL
    for (int i = 0; i < kRowTiles; ++i) LLMQ_UNROLL
    for (int half = 0; half < kHalves; ++half) LLMQ_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int64_t m = first_row(block) + i * 16 + lane / 4 + e / 2 * 8,
                    n = (first_tile(block) + warp_tile(t)) * 16 + half * 8 + lane % 4 * 2 + e % 2;
      store_float4(a, m, n, r.sums[i][half].v[e]);
    }
  }
};

// start.operator()<Kernel>(arguments) starts one, on a device or in the emulation: blocks of 16 rows where
// there are no more, else of 64, with the same bits. kFew and kMany say so in the kernel's terms.
template <template <bool, int> class Kernel, int kFew, int kMany, class Start>
int start_float4_by_rows(const Float4Arguments& a, const Start& start) {
  if (a.exponents)
    return a.rows <= 16 ? start.template operator()<Kernel<true, kFew>>(a)
                        : start.template operator()<Kernel<true, kMany>>(a);
  return a.rows <= 16 ? start.template operator()<Kernel<false, kFew>>(a)
                      : start.template operator()<Kernel<false, kMany>>(a);
}
template <class Start>
int start_float4(const Float4Arguments& a, const Start& start) {
  return start_float4_by_rows<Float4Linear, 1, 4>(a, start);
}

}  // namespace llmq::cuda

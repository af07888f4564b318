// g[i][j] += sum_t x[t][i] x[t][j] for j >= i, x BF16: products exact, sums FP32 by the matrix units, tokens
// in steps of 16 from the first, each step added to what is there. So any split of the tokens at multiples of
// 16 gives the same bits.
//
// A block computes a tile of 128 x 256 that touches the upper triangle, a warp 64 x 64 of it. Stages, for
// spans of 32 tokens in a ring of kStages:
//   fill      copies of both tiles' channels to shared memory start, as they lie: [tokens][channels]
//   multiply  two steps of 16 tokens; operands are read turned (x^T by its rows, x by its columns), 32
//             products of 16 x 8 a warp
// Rows that do not start at multiples of 16 bytes are gathered instead of copied. Cost: tokens * channels^2 /
// 2 products, and what tiles on the diagonal have below it: less than 256 channels a row.
#pragma once
#include "kernels/cuda/block.h"

namespace llmq::cuda {

struct GramArguments {
  float* g = nullptr;  // [channels, channels], rows g_stride apart
  int64_t g_stride = 0;
  const BFloat16* x = nullptr;  // [tokens, channels], rows x_stride apart
  int64_t x_stride = 0;
  int64_t tokens = 0, channels = 0;
};

// kAligned: rows of x start at multiples of 16 bytes and have whole ones.
template <int kStages, bool kAligned>
struct GramBFloat16 {
  using Arguments = GramArguments;
  static constexpr int kThreads = 256, kHigh = 128, kWide = 256, kTokens = 32, kRowTiles = 4,
                       kColumnTiles = 8;
  // words; 4 on: 16 bytes of eight tokens lie in different banks
  static constexpr int kHighStride = kHigh / 2 + 4, kWideStride = kWide / 2 + 4;

  // of Shared on a device
  static constexpr int kSharedBytes = 4 * kStages * kTokens * (kHighStride + kWideStride);
  struct Shared {
    Array<uint32_t, kStages * kTokens * kHighStride> rows;
    Array<uint32_t, kStages * kTokens * kWideStride> columns;
  };
  struct Registers {
    Sums sums[kRowTiles][kColumnTiles];
    FragmentA a[kRowTiles];
    uint32_t b[kColumnTiles / 2][4];  // of two tiles of 8 columns
    // what the thread copies of the first token of its own, from either tile's channels
    const BFloat16 *row, *column;
  };
  using Threads = PerThread<Registers, kThreads>;

  static Grid grid(const Arguments& a) {
    if (a.tokens == 0) return {0};
    return {blocks_for(a.channels, kWide), static_cast<int>(blocks_for(a.channels, kHigh))};
  }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared& shared) {
    if ((block.x + 1) * kWide <= block.y * kHigh) return;
    const int spans = static_cast<int>(blocks_for(a.tokens, kTokens));
    Threads threads;
    block.each([&](int t) {
      each_sum(block, a, t,
               [&](int i, int n, int e, float* g) { threads[t].sums[i][n].v[e] = g == nullptr ? 0.0f : *g; });
      threads[t].row = a.x + (t / (kHigh / 8) * a.x_stride + first_channel<kHigh>(t, block.y));
      threads[t].column = a.x + (t / (kWide / 8) * a.x_stride + first_channel<kWide>(t, block.x));
    });
    for (int span = 0; span < kStages - 1; ++span) fill(block, a, shared, threads, span, spans);
    for (int span = 0; span < spans; ++span) {
      // This span has arrived for all, and all are done with the span whose place is filled next.
      block.template wait_copies<kStages - 2>();
      block.barrier();
      fill(block, a, shared, threads, span + kStages - 1, spans);
      block.converge();
      LLMQ_UNROLL
      for (int step = 0; step < kTokens / 16; ++step)
        if (int64_t{span} * kTokens + 16 * step < a.tokens)
          multiply(block, shared, threads, span % kStages * kTokens + 16 * step);
    }
    block.template wait_copies<0>();
    block.each([&](int t) {
      each_sum(block, a, anew(t), [&](int i, int n, int e, float* g) {  // no place is kept from the beginning
        if (g != nullptr) *g = threads[t].sums[i][n].v[e];
      });
    });
  }

 private:
  // A warp's first row and column in the block.
  static LLMQ_BLOCK int warp_row(int t) { return t / kWarp / 4 * 64; }
  static LLMQ_BLOCK int warp_column(int t) { return t / kWarp % 4 * 64; }

  // use(tile of rows, tile of columns, element of its sums, its place in g, or null where there is none)
  template <class Use>
  static LLMQ_BLOCK void each_sum(const Block<kThreads>& block, const Arguments& a, int t, const Use& use) {
    LLMQ_UNROLL
    for (int i = 0; i < kRowTiles; ++i) LLMQ_UNROLL
    for (int n = 0; n < kColumnTiles; ++n) LLMQ_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int64_t row = int64_t{block.y} * kHigh + warp_row(t) + i * 16 + t % kWarp / 4 + e / 2 * 8;
      const int64_t column = int64_t{block.x} * kWide + warp_column(t) + n * 8 + t % 4 * 2 + e % 2;
      use(i, n, e, row <= column && column < a.channels ? a.g + row * a.g_stride + column : nullptr);
    }
  }

  // Of eight that a thread copies at once.
  template <int kCount>
  static LLMQ_BLOCK int64_t first_channel(int t, int tile) {
    return int64_t{tile} * kCount + t % (kCount / 8) * 8;
  }

  static LLMQ_BLOCK void fill(Block<kThreads>& block, const Arguments& a, Shared& shared,
                              const Threads& threads, int span, int spans) {
    if (span < spans)
      block.each([&](int t) {
        fill_tile<kHigh>(shared.rows, a, threads[t].row, t, span, block.y);
        fill_tile<kWide>(shared.columns, a, threads[t].column, t, span, block.x);
      });
    block.commit_copies();
  }

  // Channels [kCount tile, kCount (tile + 1)) of a span's tokens; source: of the thread's first token of span
  // 0.
  template <int kCount, class Words>
  static LLMQ_BLOCK void fill_tile(Words& to, const Arguments& a, const BFloat16* source, int t, int span,
                                   int tile) {
    constexpr int kOfToken = kCount / 8, kStride = kCount / 2 + 4, kStep = kThreads / kOfToken;
    const int64_t channel = first_channel<kCount>(t, tile),
                  tokens = a.tokens - int64_t{span} * kTokens - t / kOfToken;
    LLMQ_UNROLL
    for (int token = 0; token < kTokens; token += kStep) {
      const int place = (span % kStages * kTokens + t / kOfToken + token) * kStride + t % kOfToken * 4;
      if constexpr (kAligned) {
        to.copy_async(t, place, source + (int64_t{span} * kTokens + token) * a.x_stride,
                      token < tokens && channel < a.channels);
      } else {
        const int64_t own = int64_t{span} * kTokens + t / kOfToken + token;
        for (int word = 0; word < 4; ++word)
          to.set(t, place + word,
                 word_of(input(a, own, channel + 2 * word), input(a, own, channel + 2 * word + 1)));
      }
    }
  }
  static LLMQ_BLOCK BFloat16 input(const Arguments& a, int64_t token, int64_t channel) {
    if (token >= a.tokens || channel >= a.channels) return {0};
    return a.x[token * a.x_stride + channel];
  }

  // 16 tokens from `first` of the ring.
  static LLMQ_BLOCK void multiply(const Block<kThreads>& block, const Shared& shared, Threads& threads,
                                  int first) {
    LLMQ_UNROLL
    for (int i = 0; i < kRowTiles; ++i)
      block.template load_matrices<true>([&](int t) -> uint32_t* { return threads[t].a[i].v; }, shared.rows,
                                         [&](int t) {
                                           const int lane = t % kWarp, token = lane / 16 * 8 + lane % 8,
                                                     channel = warp_row(t) + i * 16 + lane / 8 % 2 * 8;
                                           return (first + token) * kHighStride + channel / 2;
                                         });
    LLMQ_UNROLL
    for (int n = 0; n < kColumnTiles / 2; ++n)
      block.template load_matrices<true>([&](int t) -> uint32_t* { return threads[t].b[n]; }, shared.columns,
                                         [&](int t) {
                                           const int lane = t % kWarp, token = lane / 8 % 2 * 8 + lane % 8,
                                                     channel = warp_column(t) + n * 16 + lane / 16 * 8;
                                           return (first + token) * kWideStride + channel / 2;
                                         });
    LLMQ_UNROLL
    for (int i = 0; i < kRowTiles; ++i) LLMQ_UNROLL
    for (int n = 0; n < kColumnTiles; ++n)
      block.multiply_bf16(
          [&](int t) -> Sums& { return threads[t].sums[i][n]; },
          [&](int t) -> const FragmentA& { return threads[t].a[i]; },
          [&](int t) {
            return FragmentB{{threads[t].b[n / 2][n % 2 * 2], threads[t].b[n / 2][n % 2 * 2 + 1]}};
          });
  }
};

// start.operator()<Kernel>(arguments); most_shared: bytes that a block may have on this device (sm_75: 64
// KiB).
template <class Start>
int start_gram(const GramArguments& a, int64_t most_shared, const Start& start) {
  if (a.channels % 8 != 0 || a.x_stride % 8 != 0 || reinterpret_cast<uintptr_t>(a.x) % 16 != 0)
    return start.template operator()<GramBFloat16<2, false>>(a);
  if (GramBFloat16<3, true>::kSharedBytes > most_shared)
    return start.template operator()<GramBFloat16<2, true>>(a);
  return start.template operator()<GramBFloat16<3, true>>(a);
}

}  // namespace llmq::cuda

// g[i][j] += sum_t x[t][i] x[t][j] for j >= i, x BF16: products exact, sums FP32 by the matrix units, tokens in steps of 16 from the first,
// each step added to what is there. So any split of the tokens at multiples of 16 gives the same bits.
//
// A block computes a 64 x 64 tile that touches the upper triangle, a warp 16 rows of it. Stages, for each 32 tokens:
//   fill      both tiles' channels to shared memory, as words of two tokens: what the fragments of x^T and of x hold
//   multiply  two steps of 16 tokens, 8 products of 16 x 8 each
// Cost: tokens * channels^2 / 2 products, and the upper half of the diagonal's tiles.
#pragma once
#include "kernels/cuda/block.h"

namespace llmq::cuda {

struct GramBFloat16 {
  struct Arguments {
    float* g = nullptr;  // [channels, channels], rows g_stride apart
    int64_t g_stride = 0;
    const BFloat16* x = nullptr;  // [tokens, channels], rows x_stride apart
    int64_t x_stride = 0;
    int64_t tokens = 0, channels = 0;
  };
  static constexpr int kThreads = 128, kTile = 64, kTokens = 32, kPairs = kTokens / 2;
  static constexpr int kStride = kPairs + 4;  // 4 words on: the lanes of a fragment read from different banks

  struct Shared {
    Array<uint32_t, kTile * kStride> rows, columns;
  };
  struct Registers {
    Sums sums[kTile / 8];
    FragmentA a;
    FragmentB b;
  };
  using Threads = PerThread<Registers, kThreads>;

  static Grid grid(const Arguments& a) {
    const int64_t tiles = a.tokens == 0 ? 0 : blocks_for(a.channels, kTile);
    return {tiles, static_cast<int>(tiles)};
  }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared& shared) {
    if (block.x < block.y) return;
    Threads threads;
    block.each([&](int t) {
      each_sum(block, a, t, [&](int n, int e, float* g) { threads[t].sums[n].v[e] = g == nullptr ? 0.0f : *g; });
    });
    for (int64_t token = 0; token < a.tokens; token += kTokens) {
      block.each([&](int t) {
        fill(shared.rows, a, t, token, int64_t{block.y} * kTile);
        fill(shared.columns, a, t, token, int64_t{block.x} * kTile);
      });
      block.barrier();
      LLMQ_UNROLL
      for (int step = 0; step < 2; ++step)
        if (token + 16 * step < a.tokens) multiply(block, shared, threads, step);
      block.barrier();
    }
    block.each([&](int t) {
      each_sum(block, a, t, [&](int n, int e, float* g) {
        if (g != nullptr) *g = threads[t].sums[n].v[e];
      });
    });
  }

 private:
  // use(product, element of its sums, its place in g, or null where there is none)
  template <class Use>
  static LLMQ_BLOCK void each_sum(const Block<kThreads>& block, const Arguments& a, int t, const Use& use) {
    LLMQ_UNROLL
    for (int n = 0; n < kTile / 8; ++n) LLMQ_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int64_t i = int64_t{block.y} * kTile + t / kWarp * 16 + t % kWarp / 4 + e / 2 * 8;
        const int64_t j = int64_t{block.x} * kTile + n * 8 + t % 4 * 2 + e % 2;
        use(n, e, i <= j && j < a.channels ? a.g + i * a.g_stride + j : nullptr);
      }
  }

  static LLMQ_BLOCK void fill(Array<uint32_t, kTile * kStride>& to, const Arguments& a, int t, int64_t token, int64_t first) {
    const int64_t channel = first + t % kTile;
    LLMQ_UNROLL
    for (int pair = t / kTile; pair < kPairs; pair += kThreads / kTile)
      to.set(t, t % kTile * kStride + pair, word_of(input(a, token + 2 * pair, channel), input(a, token + 2 * pair + 1, channel)));
  }
  static LLMQ_BLOCK BFloat16 input(const Arguments& a, int64_t token, int64_t channel) {
    if (token >= a.tokens || channel >= a.channels) return {0};
    return a.x[token * a.x_stride + channel];
  }

  static LLMQ_BLOCK void multiply(const Block<kThreads>& block, const Shared& shared, Threads& threads, int step) {
    block.each([&](int t) {
      Registers& r = threads[t];
      const int lane = t % kWarp, pair = step * 8 + lane % 4;
      LLMQ_UNROLL
      for (int word = 0; word < 4; ++word)
        r.a.v[word] = shared.rows.get(t, (t / kWarp * 16 + lane / 4 + word % 2 * 8) * kStride + pair + word / 2 * 4);
    });
    LLMQ_UNROLL
    for (int n = 0; n < kTile / 8; ++n) {
      block.each([&](int t) {
        const int lane = t % kWarp;
        LLMQ_UNROLL
        for (int word = 0; word < 2; ++word)
          threads[t].b.v[word] = shared.columns.get(t, (n * 8 + lane / 4) * kStride + step * 8 + lane % 4 + word * 4);
      });
      block.mma_bf16([&](int t) -> Sums& { return threads[t].sums[n]; }, [&](int t) -> const FragmentA& { return threads[t].a; },
                     [&](int t) -> const FragmentB& { return threads[t].b; });
    }
  }
};

}  // namespace llmq::cuda

// What a device does at most: chains of products on operands in registers, and a pass over memory that does
// nothing but read.
//
//   PeakProducts<Product>  each of a warp's kChains sums takes `steps` products of one operand word with
//                          itself: more chains than latency times products per cycle. Every number of every
//                          sum is then steps * Product::kDepth times that word's number squared.
//   ReadMemory             a thread reads kVectors vectors of 16 bytes, and writes the exclusive or of their
//                          words: a 128th of what is read.
#pragma once
#include "kernels/cuda/block.h"

namespace llmq::cuda {

struct MatrixBFloat16 {  // one word: two BF16
  static constexpr int kDepth = 16;
  using Sum = Sums;
  template <class D, class A, class B>
  static LLMQ_BLOCK void add(Block<256>& block, const D& d, const A& a, const B& b) {
    block.mma_bf16(d, a, b);
  }
};

struct MatrixInt8 {  // four INT8
  static constexpr int kDepth = 32;
  using Sum = IntegerSums;
  template <class D, class A, class B>
  static LLMQ_BLOCK void add(Block<256>& block, const D& d, const A& a, const B& b) {
    block.mma_s8(d, a, b);
  }
};

template <class Product>
struct PeakProducts {
  struct Arguments {
    int64_t blocks = 0, steps = 0;
    uint32_t word = 0;
    float* sums = nullptr;  // one per thread: of all its sums
  };
  struct Shared {};
  struct Registers {
    typename Product::Sum chains[8];
    FragmentA a;
    FragmentB b;
  };
  static constexpr int kThreads = 256, kChains = 8;
  // of a block's step
  static constexpr double kOperations = 2.0 * 16 * 8 * Product::kDepth * kChains * (kThreads / kWarp);
  static Grid grid(const Arguments& a) { return {a.blocks}; }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared&) {
    PerThread<Registers, kThreads> threads;
    block.each([&](int t) {
      Registers& r = threads[t];
      for (int c = 0; c < kChains; ++c)
        for (int e = 0; e < 4; ++e) r.chains[c].v[e] = 0;
      for (int w = 0; w < 4; ++w) r.a.v[w] = a.word;
      for (int w = 0; w < 2; ++w) r.b.v[w] = a.word;
    });
    for (int64_t s = 0; s < a.steps; ++s) {
      LLMQ_UNROLL
      for (int c = 0; c < kChains; ++c)
        Product::add(
            block, [&](int t) -> typename Product::Sum& { return threads[t].chains[c]; },
            [&](int t) -> const FragmentA& { return threads[t].a; },
            [&](int t) -> const FragmentB& { return threads[t].b; });
    }
    block.each([&](int t) {
      float sum = 0;
      for (int c = 0; c < kChains; ++c)
        for (int e = 0; e < 4; ++e) sum += static_cast<float>(threads[t].chains[c].v[e]);
      a.sums[int64_t{block.x} * kThreads + t] = sum;
    });
  }
};

// FP32: a thread's chains of fused multiply-adds, which begin at 0, 1, 2, ... and grow by factor^2 a step.
struct PeakFloat32 {
  struct Arguments {
    int64_t blocks = 0, steps = 0;
    float factor = 1;
    float* sums = nullptr;
  };
  struct Shared {};
  static constexpr int kThreads = 256, kChains = 8;
  static constexpr double kOperations = 2.0 * kChains * kThreads;
  static Grid grid(const Arguments& a) { return {a.blocks}; }
  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared&) {
    block.each([&](int t) {
      float chains[kChains];
      LLMQ_UNROLL
      for (int c = 0; c < kChains; ++c) chains[c] = static_cast<float>(c);
      for (int64_t s = 0; s < a.steps; ++s) {
        LLMQ_UNROLL
        for (int c = 0; c < kChains; ++c) chains[c] = fmaf(a.factor, a.factor, chains[c]);
      }
      float sum = 0;
      LLMQ_UNROLL
      for (int c = 0; c < kChains; ++c) sum += chains[c];
      a.sums[int64_t{block.x} * kThreads + t] = sum;
    });
  }
};

struct ReadMemory {
  struct alignas(16) Vector {
    uint32_t words[4];
  };
  static constexpr int kThreads = 256, kVectors = 32;
  static constexpr int64_t kBlockBytes = int64_t{kThreads} * kVectors * 16;
  struct Arguments {
    int64_t blocks = 0;
    const Vector* from = nullptr;  // blocks * kBlockBytes
    uint32_t* sums = nullptr;      // one per thread
  };
  struct Shared {};
  static Grid grid(const Arguments& a) { return {a.blocks}; }
  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared&) {
    block.each([&](int t) {
      const Vector* const from = a.from + int64_t{block.x} * kThreads * kVectors + t;
      uint32_t sum = 0;
      LLMQ_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const Vector vector = from[v * kThreads];
        sum ^= vector.words[0] ^ vector.words[1] ^ vector.words[2] ^ vector.words[3];
      }
      a.sums[int64_t{block.x} * kThreads + t] = sum;
    });
  }
};

}  // namespace llmq::cuda

// What a level does at most: chains of its own products on operands that stay in registers (one load of B
// from L1 per step), and a loop that does nothing but read.
//
// As many chains as gemm's register tile has accumulators: more than latency times products per cycle.
#pragma once
#include "kernels/cpu/ops/gemm.h"

namespace llmq {

// Operations done in `steps` steps, a multiplication and an addition counted as two. Products made of several
// instructions have no peak of their own.
template <class V, class Product>
__attribute__((noinline)) double peak_products(int64_t steps) {
  constexpr int kChains = V::kRowTile * V::kPanelVectors;
  unsigned char operand[64] = {};
  float sums[kChains * V::kLanes];
  typename V::F chains[kChains];
  unroll<kChains>([&](auto c) LLMQ_LAMBDA_INLINE { chains[decltype(c)::value] = V::set(0.0f); });
  const auto input = Product::broadcast(0x3f803f80u);  // BF16: two ones
  for (int64_t s = 0; s < steps; ++s) {
    asm volatile("" : : "r"(operand) : "memory");  // or the products of one step would serve all
    const auto weights = Product::load(operand);
    unroll<kChains>([&](auto c) LLMQ_LAMBDA_INLINE {
      chains[decltype(c)::value] = Product::add(chains[decltype(c)::value], input, weights);
    });
  }
  unroll<kChains>([&](auto c) LLMQ_LAMBDA_INLINE {
    V::store(sums + decltype(c)::value * V::kLanes, chains[decltype(c)::value]);
  });
  asm volatile("" : : "r"(sums) : "memory");
  return 2.0 * Product::kPerUnit * V::kLanes * kChains * static_cast<double>(steps);
}

template <class V, class Product>
constexpr double (*peak_of())(int64_t) {
  if constexpr (Product::kOneInstruction)
    return peak_products<V, Product>;
  else
    return nullptr;
}

constexpr size_t kReadBlock = 256;  // bytes of one step of read_memory, a multiple of every vector

// Reads `bytes` (a multiple of kReadBlock) from `from` (aligned to 64), asking for lines 2 KiB ahead: sooner
// than the processor's own prefetcher does, and across the borders of pages, where that one stops.
template <class V>
__attribute__((noinline)) int32_t read_memory(const void* from, size_t bytes) {
  constexpr size_t kAhead = 2048, kVector = sizeof(typename V::I);
  const unsigned char* at = static_cast<const unsigned char*>(from);
  auto even = V::zeroi(), odd = V::zeroi();
  for (const unsigned char* const end = at + bytes; at != end; at += kReadBlock) {
    for (size_t line = 0; line < kReadBlock; line += 64) __builtin_prefetch(at + kAhead + line);
    unroll<static_cast<int>(kReadBlock / kVector / 2)>([&](auto i) LLMQ_LAMBDA_INLINE {
      constexpr size_t kOffset = decltype(i)::value * 2 * kVector;
      even = V::addi(even, V::loadi(at + kOffset));
      odd = V::addi(odd, V::loadi(at + kOffset + kVector));
    });
  }
  int32_t lanes[sizeof even / 4];
  V::storei(lanes, V::addi(even, odd));
  int32_t sum = 0;
  for (const int32_t lane : lanes) sum ^= lane;
  return sum;
}

}  // namespace llmq

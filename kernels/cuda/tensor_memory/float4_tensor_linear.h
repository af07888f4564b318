// The products of kernels/cuda/float4_linear.h by the units of the sm_100 family: operands in shared memory,
// scales and sums in tensor memory. The same arguments, and the same results but for the order in which a
// unit adds the 64 products of an instruction.
//
// A block computes kRows x 128: features are the rows of an instruction, rows of x its columns. Steps, over
// spans of 64 positions, kSpans at a time:
//   fill      codes of both sides go to shared memory, words of scales to tensor memory
//   multiply  one instruction a span, then a wait for them
// Nothing overlaps within a block; blocks on one processor do. The weight needs no other order on the
// device: a tile of FragmentLayout is four matrices of 8 rows of 16 bytes, word i of lane l the word l of
// matrix i.
//
// Padding: codes and words of scales are 0, which is 0 of E4M3 and 2^-127 of exponents, no NaN.
// Cost: that of float4_linear.h, with 128 features a block.
#pragma once
#include "kernels/cuda/float4_linear.h"
#include "kernels/cuda/tensor_memory/tensor_memory.h"

namespace llmq::cuda {

template <bool kExponents, int kRows>
struct Float4TensorLinear {
  using Arguments = Float4Arguments;
  static constexpr int kSpan = 64, kSpans = 4, kThreads = 4 * kWarp, kFeatures = 128;
  static constexpr int kSpansOfScales = kExponents ? 2 : 1, kWordsOfScales = kSpans / kSpansOfScales;
  static constexpr int kRowWords = kSpan / 8;  // of a row's codes of a span
  static constexpr int kWeightWords = kFeatures * kRowWords, kInputWords = kRows * kRowWords;
  static constexpr int kSpanWords = kWeightWords + kInputWords;
  // bytes between matrices that follow along k, and along rows
  static constexpr uint32_t kLeading = 4 * kMatrixWords, kStride = 2 * kLeading;
  // columns of tensor memory
  static constexpr int kWeightColumns = kFeatures / kWarp, kInputColumns = (kRows + kWarp - 1) / kWarp;
  static constexpr int kWeightScales = kRows, kInputScales = kWeightScales + kWordsOfScales * kWeightColumns;
  static constexpr int kColumns = kRows <= 16 ? 64 : 128;
  static_assert(kInputScales + kWordsOfScales * kInputColumns <= kColumns);
  using Memory = TensorMemory<kThreads, kColumns>;

  struct Shared {
    Array<uint32_t, kSpans * kSpanWords> codes;
    typename Memory::Shared memory;
  };

  static Grid grid(const Arguments& a) {
    if (a.rows == 0) return {0};
    return {blocks_for(a.features, kFeatures), static_cast<int>(blocks_for(a.rows, kRows))};
  }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const int spans = static_cast<int>(a.positions / kSpan);
    Memory memory;
    memory.allocate(block, shared.memory);
    for (int first = 0; first < spans; first += kSpans) {
      const int count = spans - first < kSpans ? spans - first : kSpans;
      block.each([&](int t) {
        for (int i = 0; i < count; ++i) fill_codes(block, a, shared, t, first + i, i * kSpanWords);
      });
      block.commit_copies();
      fill_scales(block, a, memory, first, count);
      block.template wait_copies<0>();
      memory.publish(block);
      for (int i = 0; i < count; ++i)
        memory.template multiply<kExponents>(shared.codes, product(shared, i, first + i > 0));
      memory.finish(block);
    }
    store(block, a, memory);
    memory.release(block);
  }

 private:
  static LLMQ_BLOCK int64_t first_row(const Block<kThreads>& block) { return int64_t{block.y} * kRows; }
  static LLMQ_BLOCK int64_t first_feature(const Block<kThreads>& block) {
    return int64_t{block.x} * kFeatures;
  }

  static LLMQ_BLOCK void fill_codes(const Block<kThreads>& block, const Arguments& a, Shared& shared, int t,
                                    int span, int to) {
    for (int i = t; i < kRows * 2; i += kThreads) {
      const int64_t row = first_row(block) + i / 2;
      shared.codes.copy_async_near(t, to + kWeightWords + (i / 16 * 2 + i % 2) * kMatrixWords + i / 2 % 8 * 4,
                                   a.x + (row * (a.positions / 8) + span * kRowWords + i % 2 * 4),
                                   row < a.rows);
    }
    LLMQ_UNROLL
    for (int i = t; i < kFeatures / 16 * kWarp; i += kThreads) {
      const int64_t tile = first_feature(block) / 16 + i / kWarp;
      const bool present = tile * 16 < padded_features(a);
      const uint32_t* const from = a.weight + ((tile * (a.positions / kSpan) + span) * kWarp + i % kWarp) * 4;
      LLMQ_UNROLL
      for (int word = 0; word < 4; ++word)
        shared.codes.set(t, to + (i / kWarp * 4 + word) * kMatrixWords + i % kWarp,
                         present ? from[word] : 0u);
    }
  }

  static LLMQ_BLOCK void fill_scales(const Block<kThreads>& block, const Arguments& a, Memory& memory,
                                     int first, int count) {
    const int words = (count + kSpansOfScales - 1) / kSpansOfScales;
    for (int i = 0; i < words; ++i) {
      const int64_t word = first / kSpansOfScales + i;
      for (int column = 0; column < kWeightColumns; ++column)
        memory.store(kWeightScales + i * kWeightColumns + column, [&](int t) {
          const int64_t feature = first_feature(block) + column * kWarp + t % kWarp,
                        padded = padded_features(a);
          return feature < padded ? a.weight_scales[word * padded + feature] : 0u;
        });
      for (int column = 0; column < kInputColumns; ++column)
        memory.store(kInputScales + i * kInputColumns + column, [&](int t) {
          const int in_block = column * kWarp + t % kWarp;
          const int64_t row = first_row(block) + in_block;
          return in_block < kRows && row < a.rows ? a.x_scales[word * padded_scales(a.rows) + row] : 0u;
        });
    }
  }

  // Of the i-th span in shared memory.
  static LLMQ_BLOCK TensorProduct product(const Shared& shared, int i, bool add) {
    const int word = i / kSpansOfScales, first_byte = i % kSpansOfScales * 2;
    return {operand_descriptor(shared.codes.address(i * kSpanWords), kLeading, kStride),
            operand_descriptor(shared.codes.address(i * kSpanWords + kWeightWords), kLeading, kStride),
            float4_instruction(kFeatures, kRows, kExponents, first_byte),
            0,
            kWeightScales + word * kWeightColumns,
            kInputScales + word * kInputColumns,
            add};
  }

  static LLMQ_BLOCK void store(const Block<kThreads>& block, const Arguments& a, Memory& memory) {
    struct Eight {
      float v[8];
    };
    PerThread<Eight, kThreads> sums;
    LLMQ_UNROLL
    for (int column = 0; column < kRows; column += 8) {
      memory.load8(column, [&](int t) -> float* { return sums[t].v; });
      block.each([&](int t) {
        LLMQ_UNROLL
        for (int e = 0; e < 8; ++e)
          store_float4(a, first_row(block) + column + e, first_feature(block) + t,
                       memory.arrived(t) ? sums[t].v[e] : NAN);
      });
    }
  }
};

template <class Start>
int start_float4_tensor(const Float4Arguments& a, const Start& start) {
  return start_float4_by_rows<Float4TensorLinear, 16, 64>(a, start);
}

}  // namespace llmq::cuda

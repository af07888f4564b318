// c[m, n] = (c[m, n] or 0) + sum_k a(m, k) b(n, k), + bias[n]: one chain of FMAs over k in order for every
// element, whatever the number of rows. The FP32 products of linear() and of quadratic forms; BF16 operands
// have exact products, so this is their FP32 sum too. And those of tile_product.h that it leaves (operands
// transposed; of a Gram matrix the upper triangle is kept).
//
// A block of 256 threads computes 64 x 64 elements, a thread 4 x 4, from tiles of 16 columns in shared
// memory. Stages: start, then for each tile fetch (operands to shared memory as FP32) and multiply, then
// finish. No tensor cores: the plain form, right on every device.
#pragma once
#include "kernels/common/code_value.h"
#include "kernels/common/float_groups.h"
#include "kernels/cuda/elementwise.h"

namespace llmq::cuda {

// value(row, k) lies at row * row_step + k * depth_step.
struct DenseOperand {
  const void* values = nullptr;
  int64_t row_step = 0, depth_step = 1;
  Element element = Element::kF32;
  LLMQ_BLOCK float at(int64_t row, int64_t k) const {
    return load(values, row * row_step + k * depth_step, element);
  }
  LLMQ_BLOCK bool by_rows() const { return depth_step != 1; }  // neighbours in memory are neighbouring rows
};

// Codes of one byte (tensor/quantized_matrix.h), [rows, depth]; scales, zeros (of integers) and minima [rows,
// groups].
enum class CodeType { kInteger, kFloat8, kFloat4 };
struct CodeOperand {
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;
  const uint8_t* zeros = nullptr;
  const float* minima = nullptr;          // or null
  const int32_t* column_group = nullptr;  // or null: k / group
  int64_t depth = 0, group = 1, groups = 1;
  CodeType type = CodeType::kInteger;
  LLMQ_BLOCK float at(int64_t row, int64_t k) const {
    const uint8_t code = codes[row * depth + k];
    const int64_t g = row * groups + (column_group == nullptr ? k / group : column_group[k]);
    const float value = type == CodeType::kFloat8   ? to_float(Float8{code}) * scales[g]
                        : type == CodeType::kFloat4 ? e2m1_number(code) * scales[g]
                                                    : code_value(code, zeros[g], scales[g]);
    return minima == nullptr ? value : value - minima[g];
  }
  LLMQ_BLOCK bool by_rows() const { return false; }
};

template <class Weight>
struct Product {
  static constexpr int kTile = 64, kDepth = 16, kThreads = 256, kEach = 4, kAcross = kTile / kEach;
  static constexpr int kPadded = kTile + 4;  // neighbouring depths in other banks
  using Tile = Array<float, kDepth * kPadded>;
  struct Arguments {
    int64_t rows = 0, columns = 0, depth = 0;
    float* c = nullptr;
    int64_t c_row = 0;
    DenseOperand a;
    Weight b;
    const float* bias = nullptr;
    bool accumulate = false;  // from what c holds
    bool upper = false;       // only columns >= the row
    LLMQ_BLOCK bool wants(int64_t m, int64_t n) const {
      return m < rows && n < columns && (!upper || n >= m);
    }
  };
  struct Shared {
    Tile a, b;
  };
  struct Sums {
    float v[kEach][kEach];
  };

  static Grid grid(const Arguments& a) {
    return {blocks_for(a.columns, kTile), static_cast<int>(blocks_for(a.rows, kTile))};
  }

  template <class Operand>
  static LLMQ_BLOCK void fetch(Tile& to, const Operand& from, int64_t first, int64_t rows, int64_t k0,
                               int64_t depth, int thread) {
    for (int e = thread; e < kTile * kDepth; e += kThreads) {
      const int r = from.by_rows() ? e % kTile : e / kDepth, k = from.by_rows() ? e / kTile : e % kDepth;
      to.set(thread, k * kPadded + r, first + r < rows && k0 + k < depth ? from.at(first + r, k0 + k) : 0.0f);
    }
  }

  static LLMQ_BLOCK void multiply(Sums& sums, const Shared& shared, int thread) {
    for (int k = 0; k < kDepth; ++k) {
      float a[kEach], b[kEach];
      LLMQ_UNROLL
      for (int i = 0; i < kEach; ++i) a[i] = shared.a.get(thread, k * kPadded + thread / kAcross * kEach + i);
      LLMQ_UNROLL
      for (int j = 0; j < kEach; ++j) b[j] = shared.b.get(thread, k * kPadded + thread % kAcross * kEach + j);
      LLMQ_UNROLL
      for (int i = 0; i < kEach; ++i) LLMQ_UNROLL
      for (int j = 0; j < kEach; ++j) sums.v[i][j] = fmaf(a[i], b[j], sums.v[i][j]);
    }
  }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const int64_t first_row = int64_t{block.y} * kTile, first_column = int64_t{block.x} * kTile;
    if (a.upper && first_column + kTile <= first_row) return;
    const auto each_sum = [&](int thread, const auto& use) {
      LLMQ_UNROLL
      for (int i = 0; i < kEach; ++i) LLMQ_UNROLL
      for (int j = 0; j < kEach; ++j)
        use(i, j, first_row + thread / kAcross * kEach + i, first_column + thread % kAcross * kEach + j);
    };
    PerThread<Sums, kThreads> sums;
    block.each([&](int thread) {
      each_sum(thread, [&](int i, int j, int64_t m, int64_t n) {
        sums[thread].v[i][j] = a.accumulate && a.wants(m, n) ? a.c[m * a.c_row + n] : 0.0f;
      });
    });
    for (int64_t k0 = 0; k0 < a.depth; k0 += kDepth) {
      block.each([&](int thread) {
        fetch(shared.a, a.a, first_row, a.rows, k0, a.depth, thread);
        fetch(shared.b, a.b, first_column, a.columns, k0, a.depth, thread);
      });
      block.barrier();
      block.each([&](int thread) { multiply(sums[thread], shared, thread); });
      block.barrier();
    }
    block.each([&](int thread) {
      each_sum(thread, [&](int i, int j, int64_t m, int64_t n) {
        if (a.wants(m, n))
          a.c[m * a.c_row + n] = a.bias == nullptr ? sums[thread].v[i][j] : sums[thread].v[i][j] + a.bias[n];
      });
    });
  }
};

}  // namespace llmq::cuda

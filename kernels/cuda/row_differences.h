// kernels/common/row_difference.h: a block of 128 threads makes the differences of one group of one item.
// Stages: its range, every thread a part of the columns, halves folded (least and most do not depend on an
// order); then every thread its columns.
#pragma once
#include "kernels/common/row_difference.h"
#include "kernels/cuda/block.h"

namespace llmq::cuda {

struct MakeDifferences {
  static constexpr int kThreads = 128;
  using Arguments = RowDifferences;
  struct Shared {
    Array<float, kThreads> low, high;
  };

  static Grid grid(const Arguments& a) { return {a.items, static_cast<int>(blocks_for(a.columns, a.group))}; }

  static LLMQ_BLOCK float scaled(const Arguments& a, int64_t from, int64_t k) {
    return a.s == nullptr ? a.weight[from + k] : a.weight[from + k] * a.s[k];
  }

  // The group's range where none is given; leaves it at thread 0's place.
  static LLMQ_BLOCK void find_range(Block<kThreads>& block, const Arguments& a, Shared& shared, int64_t from,
                                    int64_t first, int64_t end) {
    block.each([&](int t) {
      RowRange range;
      for (int64_t k = first + t; k < end; k += kThreads) range.see(scaled(a, from, k));
      shared.low.set(t, t, range.low);
      shared.high.set(t, t, range.high);
    });
    block.barrier();
    for (int half = kThreads / 2; half > 0; half /= 2) {
      block.each([&](int t) {
        if (t >= half) return;
        RowRange range{shared.low.get(t, t), shared.high.get(t, t)};
        range.see(shared.low.get(t, t + half));
        range.see(shared.high.get(t, t + half));
        shared.low.set(t, t, range.low);
        shared.high.set(t, t, range.high);
      });
      block.barrier();
    }
  }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const int64_t item = a.first_item + block.x, row = item / a.options, option = item % a.options;
    const int64_t first = block.y * a.group, end = first + a.group < a.columns ? first + a.group : a.columns;
    const int64_t from = (row - a.first_item / a.options) * a.columns, to = int64_t{block.x} * a.columns;
    if (a.range == nullptr) find_range(block, a, shared, from, first, end);
    block.each([&](int t) {
      RowRange range;
      if (a.range == nullptr) {
        // nothing below zero: -0, as on the host
        range = {-(0.0f - shared.low.get(t, 0)), shared.high.get(t, 0)};
      } else {
        const float* const own = a.range + (row - a.first_item / a.options) * 2;
        range = {own[0] * a.shrink[2 * option], own[1] * a.shrink[2 * option + 1]};
      }
      const RowGrid grid = grid_of(range, a.rule);
      for (int64_t k = first + t; k < end; k += kThreads) {
        const float value = rounded_value(scaled(a, from, k), grid, a.rule);
        a.difference[to + k] = (a.s == nullptr ? value : value * a.inverse[k]) - a.weight[from + k];
      }
    });
  }
};

}  // namespace llmq::cuda

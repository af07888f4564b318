// Scales and zeros of one group for many rows (kernels/common/row_search.h says what each kernel computes). A
// block is 32 rows, a warp of it one part of their candidates or columns. What is summed over columns is one
// chain in their order, as on the CPU, so that the bits are its.
//
//   ChooseScales   ranges, a part every eighth column; then every eighth candidate, all of a part's in one
//                  pass over the columns; the least loss of all parts, of equals the first candidate. Cost:
//                  rows * columns * candidates.
//   TargetGroup, TakeGroup, RefitGroup   a few passes over the columns; sums by one warp, the rest by all
#pragma once
#include "kernels/common/row_search.h"
#include "kernels/cuda/block.h"

namespace llmq::cuda {

// 32 rows by kParts.
template <int kParts>
struct RowParts {
  static constexpr int kRows = 32, kThreads = kRows * kParts;
  int64_t columns, rows, first_row;

  LLMQ_BLOCK bool has(int t) const { return row(t) < rows; }
  LLMQ_BLOCK int64_t row(int t) const { return first_row + t % kRows; }
  LLMQ_BLOCK static int part(int t) { return t / kRows; }
  LLMQ_BLOCK int64_t at(int64_t k, int t) const { return k * rows + row(t); }

  // use(k, place) for the thread's columns.
  template <class Use>
  LLMQ_BLOCK void each_own(int t, const Use& use) const {
    if (!has(t)) return;
    for (int64_t k = part(t); k < columns; k += kParts) use(k, at(k, t));
  }
  LLMQ_BLOCK float dot(const float* a, const float* b, int t) const {
    float sum = 0;
    for (int64_t k = 0; k < columns; ++k) sum = fmaf(a[at(k, t)], b[at(k, t)], sum);
    return sum;
  }
  static Grid grid(int64_t rows) { return {blocks_for(rows, kRows)}; }
};

struct ChooseScales {
  static constexpr int kParts = 8, kEach = 8;  // of the candidates, per thread
  static_assert(RangeCandidates::kMost <= kParts * kEach);
  using Parts = RowParts<kParts>;
  static constexpr int kRows = Parts::kRows, kThreads = Parts::kThreads;
  struct Arguments {
    RangeSearch search;
    int64_t rows = 0;
  };
  struct Shared {
    Array<float, kThreads> low, high, loss;
    Array<int, kThreads> candidate;
  };
  struct Found {
    float loss;
    int candidate;
  };

  static Grid grid(const Arguments& a) { return Parts::grid(a.rows); }

  static LLMQ_BLOCK float value(const RangeSearch& s, int64_t at) {
    return s.difference == nullptr ? s.weight[at] : s.weight[at] - s.difference[at];
  }

  // The best of one part's candidates.
  static LLMQ_BLOCK Found judge(const RangeSearch& s, const Parts& parts, RowRange range, int t) {
    const int count = s.candidates.count();
    RowGrid grids[kEach];
    float inverse[kEach], sums[kEach];
    LLMQ_UNROLL
    for (int j = 0; j < kEach; ++j) {
      const int i = Parts::part(t) + j * kParts;
      grids[j] = s.candidates.at(i < count ? i : 0, range);
      inverse[j] = 1.0f / grids[j].scale;
      sums[j] = 0;
    }
    for (int64_t k = 0; k < parts.columns; ++k) {
      const float w = value(s, parts.at(k, t)), importance = s.importance[k];
      LLMQ_UNROLL
      for (int j = 0; j < kEach; ++j)
        sums[j] = plain_loss<OneRow>(sums[j], w, importance, grids[j].scale, inverse[j], grids[j].zero,
                                     s.candidates.rule.top);
    }
    Found found{INFINITY, 0};
    LLMQ_UNROLL
    for (int j = 0; j < kEach; ++j) {
      const int i = Parts::part(t) + j * kParts;
      if (i < count && sums[j] < found.loss) found = {sums[j], i};
    }
    return found;
  }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const RangeSearch& s = a.search;
    const Parts parts{s.columns, a.rows, int64_t{block.x} * kRows};
    PerThread<RowRange, kThreads> range;
    block.each([&](int t) {
      range[t] = {};
      parts.each_own(t, [&](int64_t, int64_t at) { range[t].see(value(s, at)); });
      shared.low.set(t, t, range[t].low);
      shared.high.set(t, t, range[t].high);
    });
    block.barrier();
    block.each([&](int t) {
      for (int other = t % kRows; other < kThreads; other += kRows) {
        range[t].see(shared.low.get(t, other));
        range[t].see(shared.high.get(t, other));
      }
      Found found{INFINITY, 0};
      if (parts.has(t) && s.candidates.searched) found = judge(s, parts, range[t], t);
      shared.loss.set(t, t, found.loss);
      shared.candidate.set(t, t, found.candidate);
    });
    block.barrier();
    block.each([&](int t) {
      if (t >= kRows || !parts.has(t)) return;
      Found best{INFINITY, 0};
      for (int other = t; other < kThreads; other += kRows) {
        const Found found{shared.loss.get(t, other), shared.candidate.get(t, other)};
        if (found.loss < best.loss || (found.loss == best.loss && found.candidate < best.candidate))
          best = found;
      }
      const RowGrid grid = s.candidates.at(best.candidate, range[t]);
      s.found.scale[parts.row(t)] = grid.scale;
      s.found.zero[parts.row(t)] = grid.zero;
    });
  }
};

struct TargetGroup {
  using Parts = RowParts<4>;
  static constexpr int kThreads = Parts::kThreads;
  struct Arguments {
    GroupTarget group;
    int64_t rows = 0;
  };
  struct Shared {};

  static Grid grid(const Arguments& a) { return Parts::grid(a.rows); }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared&) {
    const GroupTarget& g = a.group;
    const Parts parts{g.columns, a.rows, int64_t{block.x} * Parts::kRows};
    block.each([&](int t) {
      if (Parts::part(t) == 0 && parts.has(t)) g.loss[parts.row(t)] = parts.dot(g.y, g.target, t);
    });
    block.barrier();
    block.each([&](int t) {
      parts.each_own(
          t, [&](int64_t, int64_t at) { g.target[at] = g.target[at] + g.steps[at] * g.scale[parts.row(t)]; });
    });
  }
};

struct TakeGroup {
  using Parts = RowParts<8>;
  static constexpr int kThreads = Parts::kThreads;
  struct Arguments {
    GroupChoice group;
    int64_t rows = 0;
  };
  struct Shared {};

  static Grid grid(const Arguments& a) { return Parts::grid(a.rows); }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared&) {
    const GroupChoice& g = a.group;
    const Parts parts{g.columns, a.rows, int64_t{block.x} * Parts::kRows};
    block.each([&](int t) {
      if (!parts.has(t)) return;
      const int64_t row = parts.row(t);
      const bool better = g.tried_loss[row] < g.loss[row];
      const float scale = g.tried.scale[row];
      parts.each_own(t, [&](int64_t, int64_t at) {
        g.spent[at] = 0;
        if (!better) return;
        const float steps = g.tried_steps[at], difference = g.weight[at] - steps * scale;
        g.spent[at] = difference - g.difference[at];
        g.steps[at] = steps;
        g.difference[at] = difference;
      });
      if (!better || Parts::part(t) != 0) return;
      g.grid.scale[row] = scale;
      g.grid.zero[row] = g.tried.zero[row];
    });
  }
};

struct RefitGroup {
  using Parts = RowParts<4>;
  static constexpr int kRows = Parts::kRows, kThreads = Parts::kThreads;
  struct Arguments {
    GroupRefit group;
    int64_t rows = 0;
  };
  struct Shared {
    Array<float, kRows> slope, curve, move;
  };

  static Grid grid(const Arguments& a) { return Parts::grid(a.rows); }

  // The zero's move, by the sums of Y and of G.
  static LLMQ_BLOCK float shift(const GroupRefit& g, const Parts& parts, RowGrid grid, int t) {
    float slope = 0, whole = 0;
    for (int64_t k = 0; k < parts.columns; ++k) {
      whole += g.row_sum[k];
      slope += g.y[parts.at(k, t)];
    }
    return zero_shift(grid, slope, whole, g.rule.top);
  }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const GroupRefit& g = a.group;
    const Parts parts{g.columns, a.rows, int64_t{block.x} * kRows};
    PerThread<float, kThreads> scale;
    block.each([&](int t) {
      if (!parts.has(t)) return;
      if (Parts::part(t) == 0) shared.slope.set(t, t % kRows, parts.dot(g.y, g.steps, t));
      if (Parts::part(t) == 1) shared.curve.set(t, t % kRows, parts.dot(g.u, g.steps, t));
    });
    block.barrier();
    block.each([&](int t) {
      if (!parts.has(t)) return;
      const ScaleChange fresh = refit_scale(g.grid.scale[parts.row(t)], shared.slope.get(t, t % kRows),
                                            shared.curve.get(t, t % kRows), g.rule.stored);
      scale[t] = fresh.scale;
      parts.each_own(t, [&](int64_t, int64_t at) { g.y[at] = g.y[at] - fresh.change * g.u[at]; });
    });
    block.barrier();
    block.each([&](int t) {
      if (Parts::part(t) != 0 || !parts.has(t)) return;
      const int64_t row = parts.row(t);
      const float zero = g.grid.zero[row],
                  move = g.rule.symmetric ? 0.0f : shift(g, parts, {scale[t], zero}, t);
      g.grid.scale[row] = scale[t];
      g.grid.zero[row] = zero - move;
      shared.move.set(t, t, move);
    });
    block.barrier();
    block.each([&](int t) {
      if (!parts.has(t)) return;
      const float move = shared.move.get(t, t % kRows);
      parts.each_own(t, [&](int64_t k, int64_t at) {
        const float steps = g.steps[at] + move;
        g.steps[at] = steps;
        if (move != 0) g.y[at] = g.y[at] - move * scale[t] * g.row_sum[k];
        g.difference[at] = g.weight[at] - scale[t] * steps;
      });
    });
  }
};

}  // namespace llmq::cuda

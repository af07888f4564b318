// kernels/common/row_sums.h, with the host's bits. A block of 256 threads takes a row (one step of it for
// input errors): the largest by all threads, then 1024 terms at a time by all threads, which eight of them,
// one for each lane, add in order. Shares: a block takes 32 columns of eight times 32 rows at a time, a
// thread one column of 32 rows; a column's sums are added in the order of the rows.
#pragma once
#include "kernels/common/row_sums.h"
#include "kernels/cuda/rows.h"

namespace llmq::cuda {

struct LaneSums {
  static constexpr int kTerms = 1024;
  Array<double, kTerms> terms;
  Array<double, kSumLanes> sums;

  // sums = those of the lanes of term(thread, i) over i < count. Begins and ends at a barrier.
  template <class Term>
  LLMQ_BLOCK void add(RowBlock& block, int64_t count, const Term& term) {
    block.each([&](int t) {
      if (t < kSumLanes) sums.set(t, t, 0.0);
    });
    for (int64_t first = 0; first < count; first += kTerms) {
      const int here = static_cast<int>(count - first < kTerms ? count - first : kTerms);
      block.each([&](int t) {
        for (int i = t; i < here; i += kRowThreads) terms.set(t, i, term(t, first + i));
      });
      block.barrier();
      block.each([&](int t) {
        if (t >= kSumLanes) return;
        double sum = sums.get(t, t);
        for (int i = t; i < here; i += kSumLanes) sum += terms.get(t, i);
        sums.set(t, t, sum);
      });
      block.barrier();
    }
  }
  LLMQ_BLOCK double whole(int t) const {
    double lanes[kSumLanes];
    LLMQ_UNROLL
    for (int lane = 0; lane < kSumLanes; ++lane) lanes[lane] = sums.get(t, lane);
    return sum_of_lanes(lanes);
  }
};

// most[0] = the largest value(i) over i < count, at least 0. Ends at a barrier.
template <class T, class Value>
LLMQ_BLOCK void find_most(RowBlock& block, RowValues<T>& most, int64_t count, const Value& value) {
  block.each([&](int t) {
    T greatest = 0;
    for (int64_t i = t; i < count; i += kRowThreads) greatest = greater_of(greatest, value(i));
    most.set(t, t, greatest);
  });
  block.barrier();
  fold_halves(block, most, [](T a, T b) { return greater_of(a, b); });
}

struct SumInputErrors {
  using Arguments = InputErrors;
  static constexpr int kThreads = kRowThreads;
  struct Shared {
    RowValues<float> most;
    LaneSums lanes;
  };
  static Grid grid(const Arguments& a) { return {a.rows, static_cast<int>(blocks_for(a.columns, a.group))}; }

  static LLMQ_BLOCK void run(RowBlock& block, const Arguments& a, Shared& shared) {
    const int64_t first = block.y * a.group,
                  count = a.group < a.columns - first ? a.group : a.columns - first;
    const float *const x = a.x + block.x * a.columns + first, *const s = a.s + first,
                       *const inverse = a.inverse + first;
    const double* const weight = a.weight + first;
    if (!a.one_scale)
      find_most(block, shared.most, count, [&](int64_t k) { return scaled_magnitude(x[k], inverse[k]); });
    PerThread<InputStep, kThreads> step;
    block.each([&](int t) {
      step[t] = InputStep::of(a.one_scale ? a.scale : shared.most.get(t, 0) / a.top, a.least);
    });
    if (a.float8)
      shared.lanes.add(block, count, [&](int t, int64_t k) {
        return weighted_square(input_error<true>(x[k], s[k], inverse[k], step[t]), weight[k]);
      });
    else
      shared.lanes.add(block, count, [&](int t, int64_t k) {
        return weighted_square(input_error<false>(x[k], s[k], inverse[k], step[t]), weight[k]);
      });
    block.each([&](int t) {
      if (t == 0) a.sums[block.x * blocks_for(a.columns, a.group) + block.y] = shared.lanes.whole(t);
    });
  }
};

struct SumSquares {
  using Arguments = RowSquares;
  static constexpr int kThreads = kRowThreads;
  using Shared = LaneSums;
  static Grid grid(const Arguments& a) { return {a.rows}; }

  static LLMQ_BLOCK void run(RowBlock& block, const Arguments& a, Shared& shared) {
    const float* const x = a.x + block.x * a.columns;
    shared.add(block, a.columns,
               [&](int, int64_t k) { return weighted_square(static_cast<double>(x[k]), a.weight[k]); });
    block.each([&](int t) {
      if (t == 0) a.sums[block.x] = shared.whole(t);
    });
  }
};

struct SoftenRows {
  using Arguments = SoftRows;
  static constexpr int kThreads = kRowThreads;
  struct Shared {
    RowValues<double> most;
    LaneSums lanes;
  };
  static Grid grid(const Arguments& a) { return {a.rows}; }

  static LLMQ_BLOCK void run(RowBlock& block, const Arguments& a, Shared& shared) {
    const float* const x = a.x + block.x * a.columns;
    find_most(block, shared.most, a.columns, [&](int64_t k) { return soft_value(x[k], a.factor[k]); });
    PerThread<double, kThreads> inverse;
    block.each([&](int t) { inverse[t] = inverse_of_most(shared.most.get(t, 0)); });
    shared.lanes.add(block, a.columns,
                     [&](int t, int64_t k) { return soft_power(soft_value(x[k], a.factor[k]), inverse[t]); });
    block.each([&](int t) {
      if (t == 0) a.soft[block.x] = soft_row(shared.most.get(t, 0), shared.lanes.whole(t), a.weight[block.x]);
    });
  }
};

struct ShareColumns {
  using Arguments = ColumnShares;
  static constexpr int kThreads = kRowThreads, kColumns = kWarp, kStrips = kThreads / kColumns;
  struct Shared {
    RowValues<double> sums;
  };
  static Grid grid(const Arguments& a) { return {blocks_for(a.rows.columns, kColumns)}; }

  static LLMQ_BLOCK void run(RowBlock& block, const Arguments& a, Shared& shared) {
    const SoftRows& rows = a.rows;
    PerThread<double, kThreads> share;
    block.each([&](int t) { share[t] = 0; });
    for (int64_t first = 0; first < rows.rows; first += kStrips * kRowsTogether) {
      block.each([&](int t) {
        const int64_t k = int64_t{block.x} * kColumns + t % kColumns,
                      begin = first + t / kColumns * kRowsTogether, left = rows.rows - begin;
        double sum = 0;
        if (k < rows.columns && left > 0) {
          const double factor = rows.factor[k];
          const float* const x = rows.x + begin * rows.columns + k;
          const SoftRow* const soft = rows.soft + begin;
          const int count = left < kRowsTogether ? static_cast<int>(left) : kRowsTogether;
          for (int r = 0; r < count; ++r)
            sum += soft[r].part * soft_power(soft_value(x[r * rows.columns], factor), soft[r].inverse);
        }
        shared.sums.set(t, t, sum);
      });
      block.barrier();
      block.each([&](int t) {
        for (int i = 0; i < kStrips && t < kColumns; ++i) share[t] += shared.sums.get(t, i * kColumns + t);
      });
      block.barrier();
    }
    block.each([&](int t) {
      const int64_t k = int64_t{block.x} * kColumns + t;
      if (t < kColumns && k < rows.columns) a.share[k] = share[t];
    });
  }
};

}  // namespace llmq::cuda

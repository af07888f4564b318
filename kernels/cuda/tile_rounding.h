// The columns of a block (at most 128) of GPTQ, of group descent, of triangular solves and of trials, one
// after another, as kernels/common/row_tile.h says, by the arithmetic of kernels/common/tile_arithmetic.h, so
// that codes are the CPU's bit for bit.
//
// Arrays are [columns][rows] over all rows of a weight. A block takes 32 rows; what they carry (tile.carried,
// null: zeros) changes in shared memory alone. Stages for each eight columns, a thread of the first warp
// being a row:
//   chain   e_k from carried_k, then carried_j += e_k factors[k][j] for the later ones of the eight, in
//           registers
//   rest    carried_j += e_k factors[k][j] for k = the eight, rising, and each later column j, a warp every
//           fourth column
// Cost: rows * columns^2 / 2 fused multiply-adds for a rounding, as much again for every trial; no row waits
// for another.
#pragma once
#include "kernels/common/row_search.h"
#include "kernels/cuda/block.h"

namespace llmq::cuda {

// apply: what column k does at element `at`; returns e_k.
struct RoundColumn {
  static LLMQ_BLOCK float apply(const TileColumns& t, int64_t, int64_t at, const TileColumn<OneRow>& column,
                                float&) {
    const ColumnResult<OneRow> result = round_column<OneRow>(column);
    t.steps[at] = result.steps;
    t.difference[at] = result.difference;
    return result.error;
  }
};

struct DescendColumn {
  static LLMQ_BLOCK float apply(const TileColumns& t, int64_t k, int64_t at, const TileColumn<OneRow>& column,
                                float&) {
    const ColumnResult<OneRow> result = descend_column<OneRow>(column, t.steps[at], t.inverse[k]);
    t.steps[at] = result.steps;
    t.difference[at] = result.difference;
    return result.error;
  }
};

struct TryColumn {
  static LLMQ_BLOCK float apply(const TileColumns& t, int64_t k, int64_t, const TileColumn<OneRow>& column,
                                float& loss) {
    return try_column<OneRow>(column, t.cost[k], loss);
  }
};

struct SolveColumn {
  static LLMQ_BLOCK float apply(const TileColumns& t, int64_t, int64_t at, const TileColumn<OneRow>& column,
                                float&) {
    t.difference[at] = 0.0f - column.carried;
    return 0.0f - column.carried;
  }
};

// 32 rows of the tile, from first_row on; thread t < 32 is row t.
template <class Column>
struct ColumnChain {
  static constexpr int kThreads = 128, kRows = 32, kMostColumns = 128, kAhead = 8, kWarps = kThreads / kRows;
  struct Shared {
    Array<float, kMostColumns * kRows> carried;
    Array<float, kAhead * kRows> errors;
  };

  const TileColumns& tile;
  int64_t rows, first_row;

  LLMQ_BLOCK bool is_row(int t) const { return t < kRows && first_row + t < rows; }
  LLMQ_BLOCK int64_t row(int t) const { return first_row + t % kRows; }

  // use(column, place in shared memory, place in the tile) for the columns from `first` on that are this
  // thread's.
  template <class Use>
  LLMQ_BLOCK void each_carried(int t, int64_t first, const Use& use) const {
    if (row(t) >= rows) return;
    for (int64_t j = first + t / kRows; j < tile.columns; j += kWarps)
      use(j, static_cast<int>(j * kRows + t % kRows), j * rows + row(t));
  }

  LLMQ_BLOCK void read_carried(int t, Shared& shared) const {
    each_carried(t, 0, [&](int64_t, int at, int64_t from) {
      shared.carried.set(t, at, tile.carried == nullptr ? 0.0f : tile.carried[from]);
    });
  }

  // All columns: shared.carried in and out, a barrier before and behind. grid(t, column): the row's scale and
  // zero there; loss: of thread t's row.
  template <class Grid>
  LLMQ_BLOCK void run(Block<kThreads>& block, Shared& shared, const Grid& grid,
                      PerThread<float, kThreads>& loss) const {
    for (int64_t first = 0; first < tile.columns; first += kAhead) {
      block.each([&](int t) {
        if (is_row(t)) chain(shared, first, t, grid, loss[t]);
      });
      block.barrier();
      block.each([&](int t) {
        each_carried(t, first + kAhead, [&](int64_t j, int at, int64_t) {
          float sum = shared.carried.get(t, at);
          LLMQ_UNROLL
          for (int k = 0; k < kAhead; ++k)
            sum = fmaf(tile.factors[(first + k) * tile.factor_row + j],
                       shared.errors.get(t, k * kRows + t % kRows), sum);
          shared.carried.set(t, at, sum);
        });
      });
      block.barrier();
    }
  }

 private:
  template <class Grid>
  LLMQ_BLOCK void chain(Shared& shared, int64_t first, int t, const Grid& grid, float& loss) const {
    float carried[kAhead];
    LLMQ_UNROLL
    for (int k = 0; k < kAhead; ++k)
      carried[k] =
          first + k < tile.columns ? shared.carried.get(t, static_cast<int>((first + k) * kRows + t)) : 0.0f;
    LLMQ_UNROLL
    for (int k = 0; k < kAhead; ++k) {
      const int64_t column = first + k;
      if (column >= tile.columns) return;
      const int64_t at = column * rows + row(t);
      const RowGrid own = grid(t, column);
      const float e =
          Column::apply(tile, column, at, {tile.weight[at], carried[k], own.scale, own.zero, tile.top}, loss);
      shared.errors.set(t, k * kRows + t, e);
      shared.carried.set(t, static_cast<int>(column * kRows + t), carried[k]);
      LLMQ_UNROLL
      for (int j = k + 1; j < kAhead; ++j)
        if (first + j < tile.columns)
          carried[j] = fmaf(tile.factors[column * tile.factor_row + first + j], e, carried[j]);
    }
  }
};

template <class Column>
struct TileRounding {
  using Chain = ColumnChain<Column>;
  using Shared = typename Chain::Shared;
  static constexpr int kThreads = Chain::kThreads;
  struct Arguments {
    // columns <= kMostColumns; pointers are the device's; group null: one scale and zero for each row
    TileColumns tile;
    int64_t rows = 0;
  };

  static Grid grid(const Arguments& a) { return {blocks_for(a.rows, Chain::kRows)}; }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const TileColumns& tile = a.tile;
    const Chain chain{tile, a.rows, int64_t{block.x} * Chain::kRows};
    PerThread<float, kThreads> loss;
    block.each([&](int t) {
      loss[t] = 0;
      chain.read_carried(t, shared);
    });
    block.barrier();
    const auto grid = [&](int t, int64_t column) {
      const int64_t g = tile.group == nullptr ? chain.row(t) : tile.group[column] * a.rows + chain.row(t);
      return RowGrid{tile.scale[g], tile.zero[g]};
    };
    chain.run(block, shared, grid, loss);
  }
};

// One trial after another, each by rounding all columns.
struct TryScales {
  using Chain = ColumnChain<TryColumn>;
  using Shared = Chain::Shared;
  static constexpr int kThreads = Chain::kThreads;
  struct Arguments {
    TrialSearch search;
    int64_t rows = 0;
  };

  static Grid grid(const Arguments& a) { return {blocks_for(a.rows, Chain::kRows)}; }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const TrialSearch& search = a.search;
    const TileColumns& tile = search.columns;
    const Chain chain{tile, a.rows, int64_t{block.x} * Chain::kRows};
    PerThread<RowTrials, kThreads> found;
    PerThread<RowGrid, kThreads> tried;
    PerThread<float, kThreads> loss;
    block.each([&](int t) {
      if (chain.is_row(t)) found[t] = RowTrials::around({tile.scale[chain.row(t)], tile.zero[chain.row(t)]});
    });
    for (int i = 0; i < search.trials.count(search.rule.symmetric); ++i) {
      block.each([&](int t) {
        chain.read_carried(t, shared);
        loss[t] = 0;
        if (chain.is_row(t)) tried[t] = found[t].trial(i, search.trials, search.rule);
      });
      block.barrier();
      chain.run(
          block, shared, [&](int t, int64_t) { return tried[t]; }, loss);
      block.each([&](int t) {
        if (chain.is_row(t)) found[t].judge(tried[t], loss[t]);
      });
    }
    block.each([&](int t) {
      if (!chain.is_row(t)) return;
      const int64_t row = chain.row(t);
      search.found.scale[row] = found[t].best.scale;
      search.found.zero[row] = found[t].best.zero;
      if (search.loss != nullptr) search.loss[row] = found[t].least;
    });
  }
};

}  // namespace llmq::cuda

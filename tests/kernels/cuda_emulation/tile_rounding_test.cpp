// kernels/cuda/tile_rounding.h against the processor's own (device/host_tiles.h): the same bits, for every
// kind of column.
#include "kernels/cuda/tile_rounding.h"

#include <gtest/gtest.h>

#include <vector>

#include "device/host_tiles.h"
#include "emulation_fixture.h"
#include "kernels/cuda/group_search.h"
#include "kernels/cuda/launch_emulated.h"

namespace llmq::cuda {
namespace {

using namespace llmq::testing;

// A tile whose row r is row r % host_tile_rows() of the numbers: whatever the rows, the host's first ones are
// known.
struct TileProblem {
  int64_t columns, rows;
  std::vector<float> factors, carried, weight, steps, difference, scale, zero, inverse, cost, loss;
  std::vector<int32_t> group;

  TileProblem(int64_t columns_, int64_t rows_, std::uint64_t seed) : columns(columns_), rows(rows_) {
    Numbers numbers(seed);
    const int64_t groups = (columns + 31) / 32;
    factors = numbers.values(columns * columns, 2, 0.1);
    cost = absolute(numbers.values(columns)), inverse = absolute(numbers.values(columns));
    for (int64_t k = 0; k < columns; ++k)
      group.push_back(static_cast<int32_t>(k * 7 % columns * groups / columns));
    carried = repeated(numbers.values(columns * host_tile_rows(), 2, 0.1), columns);
    weight = repeated(numbers.values(columns * host_tile_rows(), 3), columns);
    scale = repeated(absolute(numbers.values(groups * host_tile_rows(), 2, 0.2)), groups);
    zero = repeated(numbers.values(groups * host_tile_rows(), 0, 15), groups);
    for (float& z : zero) z = std::nearbyint(std::fabs(z));
    steps = repeated(numbers.values(columns * host_tile_rows(), 0, 8), columns);
    for (float& s : steps) s = std::nearbyint(s);
    difference.assign(weight.size(), 0.25f);
    loss.assign(static_cast<std::size_t>(rows), 0.5f);
  }

  std::vector<float> repeated(const std::vector<float>& values, int64_t lines) const {
    std::vector<float> all;
    for (int64_t k = 0; k < lines; ++k)
      for (int64_t r = 0; r < rows; ++r)
        all.push_back(values[static_cast<std::size_t>(k * host_tile_rows() + r % host_tile_rows())]);
    return all;
  }

  TileColumns tile() {
    TileColumns t;
    t.columns = columns, t.factors = factors.data(), t.factor_row = columns, t.carried = carried.data(),
    t.weight = weight.data();
    t.steps = steps.data(), t.difference = difference.data(), t.scale = scale.data(), t.zero = zero.data(),
    t.group = group.data();
    t.inverse = inverse.data(), t.cost = cost.data(), t.loss = loss.data(), t.top = 15;
    return t;
  }
};

template <class Column>
void expect_same(void (*host)(const TileColumns&)) {
  for (const int64_t columns : {1, 8, 13, 128}) {
    const auto seed = static_cast<std::uint64_t>(columns);
    TileProblem want(columns, host_tile_rows(), seed);
    host(want.tile());
    for (const int64_t rows : {host_tile_rows(), int64_t{5}, 2 * host_tile_rows() + 3}) {
      TileProblem got(columns, rows, seed);
      emulate<TileRounding<Column>>({got.tile(), rows});
      EXPECT_TRUE(same_bits(got.steps, got.repeated(want.steps, columns))) << columns << " " << rows;
      EXPECT_TRUE(same_bits(got.difference, got.repeated(want.difference, columns)))
          << columns << " " << rows;
    }
  }
}

TEST(CudaTileRounding, HasTheProcessorsBits) {
  expect_same<RoundColumn>(host_tile_round);
  expect_same<DescendColumn>(host_tile_descend);
  expect_same<SolveColumn>(host_tile_solve);
}

TEST(CudaTileRounding, TriesScalesAsTheProcessorDoes) {
  for (const bool symmetric : {true, false})
    for (const int64_t columns : {1, 13, 128}) {
      TileProblem want(columns, host_tile_rows(), 3), got(columns, host_tile_rows() + 3, 3);
      std::fill(want.group.begin(), want.group.end(), 0);
      const GridRule rule{symmetric, ScaleType::kF16, 15, 8};
      const auto lanes = static_cast<std::size_t>(host_tile_rows());
      std::vector<RowTrials> search;
      for (std::size_t r = 0; r < lanes; ++r)
        search.push_back(RowTrials::around({want.scale[r], want.zero[r]}));
      const std::vector<float> carried = want.carried;
      for (int i = 0; i < kCoarseTrials.count(symmetric); ++i) {
        for (std::size_t r = 0; r < lanes; ++r) {
          const RowGrid tried = search[r].trial(i, kCoarseTrials, rule);
          want.scale[r] = tried.scale, want.zero[r] = tried.zero;
        }
        want.carried = carried;
        std::fill(want.loss.begin(), want.loss.end(), 0.0f);
        host_tile_try(want.tile());
        for (std::size_t r = 0; r < lanes; ++r) search[r].judge({want.scale[r], want.zero[r]}, want.loss[r]);
      }
      std::vector<float> scale(static_cast<std::size_t>(got.rows)), zero(scale.size());
      TrialSearch trials{got.tile(), {scale.data(), zero.data()}, got.loss.data(), kCoarseTrials, rule};
      trials.columns.group = nullptr;
      emulate<TryScales>({trials, got.rows});
      for (std::size_t r = 0; r < scale.size(); ++r) {
        EXPECT_EQ(scale[r], search[r % lanes].best.scale) << r << " of " << columns;
        EXPECT_EQ(zero[r], search[r % lanes].best.zero) << r << " of " << columns;
        EXPECT_EQ(got.loss[r], search[r % lanes].least) << r << " of " << columns;
      }
    }
}

// Four rows that would gain by a zero one up or down; a zero at either end of the codes stays.
TEST(CudaGroupSearch, AZeroStaysWithinTheCodes) {
  constexpr int64_t kColumns = 2, kRows = 4;
  const std::vector<float> weight(kColumns * kRows, 3.0f), row_sum(kColumns, 0.5f), u(kColumns * kRows);
  std::vector<float> y, steps(kColumns * kRows, 2.0f), difference(steps.size()), scale(kRows, 1.0f),
      zero = {14, 15, 1, 0};
  for (int64_t k = 0; k < kColumns; ++k) y.insert(y.end(), {-5.0f, -5.0f, 5.0f, 5.0f});
  GroupRefit group;
  group.columns = kColumns;
  group.weight = weight.data();
  group.row_sum = row_sum.data();
  group.u = u.data();
  group.y = y.data();
  group.steps = steps.data();
  group.difference = difference.data();
  group.grid = {scale.data(), zero.data()};
  group.rule = {false, ScaleType::kF32, 15, 8};
  emulate<RefitGroup>({group, kRows});
  EXPECT_EQ(zero, (std::vector<float>{15, 15, 0, 0}));
  EXPECT_EQ(steps, (std::vector<float>{1, 2, 3, 2, 1, 2, 3, 2})) << "the codes stand";
  EXPECT_EQ(difference, (std::vector<float>{2, 1, 0, 1, 2, 1, 0, 1}));
}

}  // namespace
}  // namespace llmq::cuda

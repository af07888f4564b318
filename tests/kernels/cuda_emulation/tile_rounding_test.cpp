// kernels/cuda/tile_rounding.h against the processor's own (device/host_tiles.h): the same bits, for every kind of column.
#include "kernels/cuda/tile_rounding.h"

#include <gtest/gtest.h>

#include <vector>

#include "device/host_tiles.h"
#include "emulation_fixture.h"
#include "kernels/cuda/launch_emulated.h"

namespace llmq::cuda {
namespace {

using namespace llmq::testing;

// A tile whose row r is row r % host_tile_rows() of the numbers: whatever the rows, the host's first ones are known.
struct TileProblem {
  int64_t columns, rows;
  std::vector<float> factors, carried, weight, steps, difference, scale, zero, inverse, cost, loss;
  std::vector<int32_t> group;

  TileProblem(int64_t columns_, int64_t rows_, std::uint64_t seed) : columns(columns_), rows(rows_) {
    Numbers numbers(seed);
    const int64_t groups = (columns + 31) / 32;
    factors = numbers.values(columns * columns, 2, 0.1);
    cost = absolute(numbers.values(columns)), inverse = absolute(numbers.values(columns));
    for (int64_t k = 0; k < columns; ++k) group.push_back(static_cast<int32_t>(k * 7 % columns * groups / columns));
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
      for (int64_t r = 0; r < rows; ++r) all.push_back(values[static_cast<std::size_t>(k * host_tile_rows() + r % host_tile_rows())]);
    return all;
  }

  TileColumns tile() {
    TileColumns t;
    t.columns = columns, t.factors = factors.data(), t.factor_row = columns, t.carried = carried.data(), t.weight = weight.data();
    t.steps = steps.data(), t.difference = difference.data(), t.scale = scale.data(), t.zero = zero.data(), t.group = group.data();
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
      EXPECT_TRUE(same_bits(got.difference, got.repeated(want.difference, columns))) << columns << " " << rows;
      EXPECT_TRUE(same_bits(got.carried, got.repeated(want.carried, columns))) << columns << " " << rows;
      EXPECT_TRUE(same_bits(got.loss, got.repeated(want.loss, 1))) << columns << " " << rows;
    }
  }
}

TEST(CudaTileRounding, HasTheProcessorsBits) {
  expect_same<RoundColumn>(host_tile_round);
  expect_same<DescendColumn>(host_tile_descend);
  expect_same<SolveColumn>(host_tile_solve);
  expect_same<TryColumn>(host_tile_try);
}

}  // namespace
}  // namespace llmq::cuda

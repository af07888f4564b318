// kernels/cuda/tile_product.h has the bits of kernels/cuda/product.h: at edges of its tiles, over several
// turns of its ring, over the upper triangle alone, from what is there or from zero.
#include "kernels/cuda/tile_product.h"

#include <gtest/gtest.h>

#include <vector>

#include "emulation_fixture.h"
#include "kernels/cuda/launch_emulated.h"
#include "kernels/cuda/product.h"

namespace llmq::cuda {
namespace {

using namespace llmq::testing;

// On 16 bytes, with nothing behind the last.
using Floats = std::vector<float, AlignedWords::Allocator<float>>;

Floats floats(Numbers& numbers, int64_t count) {
  const std::vector<float> values = numbers.values(count, 6);
  return {values.begin(), values.end()};
}

// What a kernel leaves in c, what it may not touch included.
template <class Run>
std::vector<float> after(TileProductArguments a, const std::vector<float>& c, const Run& run) {
  std::vector<float> result = c;
  a.c = result.data();
  run(a);
  return result;
}

void emulate_plain(const TileProductArguments& a) {
  emulate<Product<DenseOperand>>({a.rows,
                                  a.columns,
                                  a.depth,
                                  a.c,
                                  a.c_row,
                                  {a.a, 1, a.a_row},
                                  {a.b, 1, a.b_row},
                                  nullptr,
                                  a.accumulate,
                                  a.upper});
}

// All forms of one shape; rows of the operands end `beyond` further on.
void expect_the_same(int64_t rows, int64_t columns, int64_t depth, int64_t beyond) {
  Numbers numbers(static_cast<std::uint64_t>(rows * 31 + columns * 7 + depth));
  const int64_t a_row = rows + beyond, b_row = columns + 2 * beyond, c_row = columns + 3;
  const auto size = [&](int64_t width, int64_t row) { return depth == 0 ? 0 : (depth - 1) * row + width; };
  const Floats a = floats(numbers, size(rows, a_row)), b = floats(numbers, size(columns, b_row));
  const std::vector<float> c = numbers.values(rows * c_row, 6);
  for (const bool accumulate : {false, true})
    for (const bool upper : {false, true}) {
      const TileProductArguments arguments{rows,  columns,  depth, nullptr,    c_row, a.data(),
                                           a_row, b.data(), b_row, accumulate, upper};
      ASSERT_TRUE(is_aligned(arguments));
      const std::vector<float> want = after(arguments, c, emulate_plain);
      const std::string what = fmt::format("{} x {} x {}, {} beyond, {}, {}", rows, columns, depth, beyond,
                                           accumulate ? "from c" : "from 0", upper ? "upper" : "all");
      EXPECT_TRUE(same_bits(after(arguments, c, emulate<TileProduct<32>>), want)) << what;
      EXPECT_TRUE(same_bits(after(arguments, c, emulate<TileProduct<64>>), want)) << what;
    }
}

TEST(CudaTileProduct, HasTheBitsOfTheProduct) {
  expect_the_same(4, 4, 1, 0);
  expect_the_same(36, 132, 17, 4);
  expect_the_same(128, 128, 64, 0);       // whole tiles, the ring once
  expect_the_same(200, 260, 31, 8);       // upper: tiles below the diagonal, on it, above it
  expect_the_same(68, 4, 16 * 9 + 5, 4);  // the ring again and again
  expect_the_same(8, 12, 0, 0);
  expect_the_same(0, 12, 5, 0);
}

// Which tile is a matter of how many there are; a start of its own sees the choice.
TEST(CudaTileProduct, TakesFlatTilesWhereThereAreFew) {
  const auto rows_of = [](int64_t rows, int64_t columns) {
    return start_tile_product({rows, columns},
                              []<class Kernel>(const TileProductArguments&) { return Kernel::kRows; });
  };
  EXPECT_EQ(rows_of(128, 4096), 32);
  EXPECT_EQ(rows_of(128, 4100), 64);
  EXPECT_EQ(rows_of(5120, 5120), 64);
}

TEST(CudaTileProduct, LeavesToTheProductWhatCannotBeCopiedByVectors) {
  const Floats numbers(64);
  const TileProductArguments good{4, 8, 4, nullptr, 9, numbers.data(), 4, numbers.data(), 8};
  EXPECT_TRUE(is_aligned(good));
  const auto but = [&](const auto& change) {
    TileProductArguments a = good;
    change(a);
    return is_aligned(a);
  };
  EXPECT_FALSE(but([](auto& a) { a.rows = 3; }));
  EXPECT_FALSE(but([](auto& a) { a.columns = 7; }));
  EXPECT_FALSE(but([](auto& a) { a.a_row = 5; }));
  EXPECT_FALSE(but([](auto& a) { a.b_row = 9; }));
  EXPECT_FALSE(but([](auto& a) { ++a.a; }));
  EXPECT_FALSE(but([](auto& a) { ++a.b; }));
}

}  // namespace
}  // namespace llmq::cuda

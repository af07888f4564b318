// The order of the sum is the promise: one chain over the depth, whatever the level, the tile or the
// neighbours.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "support/cpu_levels.h"

namespace llmq {
namespace {

using testing::normal_values;
using testing::present_levels;

struct Shape {
  std::int64_t rows, columns, depth;
};
const Shape kShapes[] = {
    {1, 1, 1},   {3, 5, 7},    {12, 32, 64}, {13, 33, 65}, {25, 70, 129},
    {31, 17, 2}, {1, 300, 33}, {2, 300, 33}, {1, 64, 5},   {1, 96, 7}};  // few rows: several panels at once

// Plain rows of A against a weight [columns][depth], all panels in one call.
template <class T>
std::vector<float> product(const CpuKernels& level, CpuFormat format, const std::vector<T>& a,
                           const std::vector<T>& w, const Shape& s, const float* start) {
  const std::int64_t panel = level.panel, panels = (s.columns + panel - 1) / panel,
                     unit_bytes = (s.depth * static_cast<std::int64_t>(sizeof(T)) + 3) / 4 * 4;
  std::vector<unsigned char> packed(static_cast<std::size_t>(panels * unit_bytes * panel));
  for (std::int64_t p = 0; p < panels; ++p)
    level.pack[static_cast<int>(format)](packed.data() + p * unit_bytes * panel,
                                         w.data() + p * panel * s.depth, s.depth,
                                         std::min(panel, s.columns - p * panel), s.depth);
  std::vector<float> c(static_cast<std::size_t>(s.rows * s.columns), -1.0f);
  GemmPanel g;
  g.columns = s.columns;
  g.a = a.data();
  g.a_row = s.depth * static_cast<std::int64_t>(sizeof(T));
  g.b = packed.data();
  g.b_panel = unit_bytes * panel;
  g.c = c.data();
  g.c_row = s.columns;
  g.rows = s.rows;
  g.depth = s.depth;
  g.start = start;
  level.gemm[static_cast<int>(format)](g);
  return c;
}

std::vector<BFloat16> rounded(const std::vector<float>& values) {
  std::vector<BFloat16> out(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) out[i] = to_bfloat16(values[i]);
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(Gemm, Float32IsOneChainOfFusedMultiplyAddsAtEveryLevel) {
  for (const Shape& s : kShapes) {
    const auto a = normal_values(static_cast<std::size_t>(s.rows * s.depth), 1);
    const auto w = normal_values(static_cast<std::size_t>(s.columns * s.depth), 2);
    const auto bias = normal_values(static_cast<std::size_t>(s.columns), 3);
    std::vector<float> expected;
    for (std::int64_t r = 0; r < s.rows; ++r)
      for (std::int64_t n = 0; n < s.columns; ++n) {
        float sum = bias[static_cast<std::size_t>(n)];
        for (std::int64_t k = 0; k < s.depth; ++k)
          sum = std::fma(a[static_cast<std::size_t>(r * s.depth + k)],
                         w[static_cast<std::size_t>(n * s.depth + k)], sum);
        expected.push_back(sum);
      }
    for (const CpuKernels* level : present_levels())
      EXPECT_TRUE(same_bits(product(*level, CpuFormat::kF32, a, w, s, bias.data()), expected))
          << level->name << " " << s.rows << "x" << s.columns << "x" << s.depth;
  }
}

// Without a BF16 instruction both halves of a pair are fused one after the other: again one chain, the same
// at each such level.
TEST(Gemm, BFloat16WithoutItsInstructionIsOneChainToo) {
  for (const Shape& s : kShapes) {
    const auto a = rounded(normal_values(static_cast<std::size_t>(s.rows * s.depth), 1));
    const auto w = rounded(normal_values(static_cast<std::size_t>(s.columns * s.depth), 2));
    std::vector<float> expected;
    for (std::int64_t r = 0; r < s.rows; ++r)
      for (std::int64_t n = 0; n < s.columns; ++n) {
        float sum = 0;
        for (std::int64_t k = 0; k < s.depth; ++k)
          sum = std::fma(to_float(a[static_cast<std::size_t>(r * s.depth + k)]),
                         to_float(w[static_cast<std::size_t>(n * s.depth + k)]), sum);
        expected.push_back(sum);
      }
    for (const CpuKernels* level : {scalar_level(), avx2_level(), avx512_plain_level()})
      if (level != nullptr) {
        EXPECT_TRUE(same_bits(product(*level, CpuFormat::kBF16, a, w, s, nullptr), expected))
            << level->name << " " << s.rows << "x" << s.columns << "x" << s.depth;
      }
  }
}

TEST(Gemm, ARowDoesNotDependOnItsNeighbours) {
  const Shape s{27, 40, 65};
  const auto a = rounded(normal_values(static_cast<std::size_t>(s.rows * s.depth), 1));
  const auto w = rounded(normal_values(static_cast<std::size_t>(s.columns * s.depth), 2));
  for (const CpuKernels* level : present_levels()) {
    const auto whole = product(*level, CpuFormat::kBF16, a, w, s, nullptr);
    for (std::int64_t r = 0; r < s.rows; ++r) {
      const std::vector<BFloat16> row(a.begin() + r * s.depth, a.begin() + (r + 1) * s.depth);
      const auto alone = product(*level, CpuFormat::kBF16, row, w, {1, s.columns, s.depth}, nullptr);
      EXPECT_TRUE(same_bits(alone, {whole.begin() + r * s.columns, whole.begin() + (r + 1) * s.columns}))
          << level->name << " row " << r;
    }
  }
}

}  // namespace
}  // namespace llmq

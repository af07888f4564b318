// AMX's tiles add as Intel's manual says, and the emulation, which stands in for them on other processors,
// adds likewise: both against that sum written out, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "support/cpu_levels.h"

namespace llmq {
namespace {

using testing::normal_values;

std::vector<const CpuKernels*> tiled_levels() {
  std::vector<const CpuKernels*> levels;
  for (const CpuKernels* level : {amx_emulated_level(), amx_level()})
    if (level != nullptr) levels.push_back(level);
  return levels;
}

#define LLMQ_WITH_TILES(levels)                                 \
  const std::vector<const CpuKernels*> levels = tiled_levels(); \
  if (levels.empty()) GTEST_SKIP() << "the level needs AVX-512 with BF16"

std::vector<BFloat16> numbers(std::int64_t count, unsigned seed, float scale = 1) {
  std::vector<BFloat16> out;
  for (const float value : normal_values(static_cast<std::size_t>(count), seed))
    out.push_back(to_bfloat16(scale * value));
  return out;
}

float normal_or_zero(float v) {
  return std::fabs(v) < std::numeric_limits<float>::min() ? std::copysign(0.0f, v) : v;
}

// Products of one row and one column: 32 along the depth at a time, even ones and odd ones apart.
float chain(const BFloat16* a, const BFloat16* w, std::int64_t depth, float sum) {
  for (std::int64_t k = 0; k < depth; k += 32) {
    float even = 0, odd = 0;
    for (std::int64_t i = k; i < std::min(k + 32, depth); ++i) {
      float& part = i % 2 == 0 ? even : odd;
      part = normal_or_zero(std::fma(normal_or_zero(to_float(a[i])), normal_or_zero(to_float(w[i])), part));
    }
    sum = normal_or_zero(sum + normal_or_zero(even + odd));
  }
  return sum;
}

// A weight [columns][depth] as panels, each `group` of the depth by itself.
struct Panels {
  Panels(const CpuKernels& level, const std::vector<BFloat16>& w, std::int64_t columns, std::int64_t depth,
         std::int64_t group)
      : group_bytes((group + 1) / 2 * 4 * level.panel), panel_bytes(depth / group * group_bytes) {
    const std::int64_t panel = level.panel;
    bytes.resize(static_cast<std::size_t>((columns + panel - 1) / panel * panel_bytes));
    for (std::int64_t n = 0; n < columns; n += panel)
      for (std::int64_t k = 0; k < depth; k += group)
        level.pack[1](bytes.data() + n / panel * panel_bytes + k / group * group_bytes,
                      w.data() + n * depth + k, depth, std::min(panel, columns - n), group);
  }
  std::int64_t group_bytes, panel_bytes;
  std::vector<unsigned char> bytes;
};

void expect_bits(const std::vector<float>& found, const std::vector<float>& expected, const CpuKernels& level,
                 const std::string& what) {
  std::size_t different = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    different += bits_from_float(found[i]) != bits_from_float(expected[i]);
  EXPECT_EQ(different, 0u) << level.name << " " << what << ", of " << expected.size();
}

TEST(AmxTiles, SumsAreThoseOfTheInstruction) {
  LLMQ_WITH_TILES(levels);
  struct TileShape {
    std::int64_t rows, columns, depth;
    float scale;
  };
  for (const TileShape& s :
       {TileShape{1, 1, 1, 1}, TileShape{16, 32, 32, 1}, TileShape{17, 33, 31, 1}, TileShape{70, 70, 129, 1},
        TileShape{33, 32, 801, 1}, TileShape{5, 40, 64, 3e-20f}}) {
    const auto a = numbers(s.rows * s.depth, 1, s.scale), w = numbers(s.columns * s.depth, 2, s.scale);
    const auto bias = normal_values(static_cast<std::size_t>(s.columns), 3);
    for (const bool with_bias : {false, true})
      for (const CpuKernels* level : levels) {
        std::vector<float> expected;
        for (std::int64_t r = 0; r < s.rows; ++r)
          for (std::int64_t n = 0; n < s.columns; ++n)
            expected.push_back(chain(a.data() + r * s.depth, w.data() + n * s.depth, s.depth,
                                     with_bias ? bias[static_cast<std::size_t>(n)] : 0));
        const Panels panels(*level, w, s.columns, s.depth, s.depth);
        std::vector<float> c(expected.size(), -1);
        GemmPanel g;
        g.a = a.data();
        g.a_row = 2 * s.depth;
        g.b = panels.bytes.data();
        g.b_panel = panels.panel_bytes;
        g.c = c.data();
        g.c_row = s.columns;
        g.rows = s.rows;
        g.columns = s.columns;
        g.depth = s.depth;
        g.start = with_bias ? bias.data() : nullptr;
        level->gemm[1](g);
        expect_bits(c, expected, *level, std::to_string(s.rows) + " rows, depth " + std::to_string(s.depth));
      }
  }
}

TEST(AmxTiles, TurnedRowsAreTheSameRows) {
  LLMQ_WITH_TILES(levels);
  constexpr std::int64_t kRows = 29, kColumns = 32, kDepth = 102;
  const auto a = numbers(kRows * kDepth, 1), w = numbers(kColumns * kDepth, 2);
  const auto begin = normal_values(kRows * kColumns, 3);
  for (const CpuKernels* level : levels) {
    const Panels rows(*level, a, kRows, kDepth, kDepth), panels(*level, w, kColumns, kDepth, kDepth);
    std::vector<float> c = begin, expected;
    for (std::int64_t r = 0; r < kRows; ++r)
      for (std::int64_t n = 0; n < kColumns; ++n)
        expected.push_back(chain(a.data() + r * kDepth, w.data() + n * kDepth, kDepth,
                                 begin[static_cast<std::size_t>(r * kColumns + n)]));
    GemmPanel g;
    g.transposed = true;
    g.a = rows.bytes.data();
    g.a_row = 4 * level->panel;
    g.b = panels.bytes.data();
    g.c = c.data();
    g.c_row = kColumns;
    g.rows = kRows;
    g.columns = kColumns;
    g.depth = kDepth;
    g.accumulate = true;
    level->gemm[1](g);
    expect_bits(c, expected, *level, "transposed");
  }
}

// Groups that fill the tiles and groups that do not, their scales added in order.
TEST(AmxTiles, GroupsAreScaledInOrder) {
  LLMQ_WITH_TILES(levels);
  for (const std::int64_t group : {16, 40, 64, 160})
    for (const std::int64_t rows : {3, 45, 64}) {
      constexpr std::int64_t kColumns = 30;
      const std::int64_t depth = 4 * group;
      const auto a = numbers(rows * depth, 1), w = numbers(kColumns * depth, 2);
      for (const CpuKernels* level : levels) {
        const std::int64_t panel = level->panel;
        const auto scales = normal_values(static_cast<std::size_t>(4 * panel), 3),
                   bias = normal_values(static_cast<std::size_t>(panel), 4);
        const Panels panels(*level, w, kColumns, depth, group);
        std::vector<float> c(static_cast<std::size_t>(rows * kColumns), -1), expected;
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t n = 0; n < kColumns; ++n) {
            float y = bias[static_cast<std::size_t>(n)];
            for (std::int64_t k = 0; k < depth; k += group)
              y = std::fma(chain(a.data() + r * depth + k, w.data() + n * depth + k, group, 0),
                           scales[static_cast<std::size_t>(k / group * panel + n)], y);
            expected.push_back(y);
          }
        GemmPanel g;
        g.a = a.data();
        g.a_row = 2 * depth;
        g.b = panels.bytes.data();
        g.b_panel = panels.group_bytes;
        g.c = c.data();
        g.c_row = kColumns;
        g.rows = rows;
        g.columns = kColumns;
        g.depth = depth;
        g.start = bias.data();
        g.scale = scales.data();
        level->gemm_groups[1](g, group);
        expect_bits(c, expected, *level, std::to_string(rows) + " rows, groups of " + std::to_string(group));
      }
    }
}

}  // namespace
}  // namespace llmq

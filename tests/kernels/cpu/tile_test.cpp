// Chains and sums over a tile of rows, bit for bit what one row gives by itself in plain fused multiply-adds,
// at every level.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/cpu_levels.h"

namespace llmq {
namespace {

using testing::normal_values;
using testing::present_levels;

constexpr float kTop = 15;

struct Tile {
  std::int64_t rows, columns;
  std::vector<float> factors, carried, weight, steps, difference, scale, zero, inverse, cost, loss;
  std::vector<std::int32_t> group;

  Tile(const CpuKernels& level, std::int64_t count)
      : rows(level.panel),
        columns(count),
        factors(normal_values(static_cast<std::size_t>(count * count), 1)),
        carried(normal_values(static_cast<std::size_t>(count * rows), 2)),
        weight(normal_values(carried.size(), 3)),
        steps(carried.size()),
        difference(normal_values(carried.size(), 4)),
        scale(static_cast<std::size_t>(2 * rows)),
        zero(scale.size()),
        loss(static_cast<std::size_t>(rows), 0.5f) {
    for (std::size_t i = 0; i < scale.size(); ++i) {
      scale[i] = 0.25f + 0.03125f * static_cast<float>(i % 5);
      if (i % 3 == 1) scale[i] = -scale[i];  // scales may be negative
      zero[i] = static_cast<float>(i % 16);
    }
    for (std::int64_t k = 0; k < count; ++k) {
      group.push_back(k % 3 == 0 ? 1 : 0);
      cost.push_back(0.75f + static_cast<float>(k % 7));
      inverse.push_back(0.5f + 0.125f * static_cast<float>(k % 4));
    }
    for (std::int64_t k = 0; k < count; ++k)
      for (std::int64_t r = 0; r < rows; ++r)
        steps[at(k, r)] =
            std::clamp(std::nearbyint(4 * weight[at(k, r)]), -zero_of(k, r), kTop - zero_of(k, r));
  }
  std::size_t at(std::int64_t k, std::int64_t r) const { return static_cast<std::size_t>(k * rows + r); }
  float scale_of(std::int64_t k, std::int64_t r) const {
    return scale[at(group[static_cast<std::size_t>(k)], r)];
  }
  float zero_of(std::int64_t k, std::int64_t r) const {
    return zero[at(group[static_cast<std::size_t>(k)], r)];
  }
  TileColumns view() {
    TileColumns t;
    t.columns = columns;
    t.factors = factors.data();
    t.factor_row = columns;
    t.carried = carried.data();
    t.weight = weight.data();
    t.steps = steps.data();
    t.difference = difference.data();
    t.scale = scale.data();
    t.zero = zero.data();
    t.group = group.data();
    t.inverse = inverse.data();
    t.cost = cost.data();
    t.loss = loss.data();
    t.top = kTop;
    return t;
  }
  float steps_for(float v, std::int64_t k, std::int64_t r) const {
    const float zero_code = zero_of(k, r);
    return std::min(kTop - zero_code, std::max(-zero_code, std::nearbyint(v / scale_of(k, r))));
  }
};

enum class Chain { kRound, kDescend, kSolve, kTry };

// One row by itself.
void follow(Tile& t, Chain chain, std::int64_t r) {
  for (std::int64_t k = 0; k < t.columns; ++k) {
    const std::size_t i = t.at(k, r);
    const float scale = t.scale_of(k, r);
    float error = 0;
    if (chain == Chain::kRound) {
      t.steps[i] = t.steps_for(t.weight[i] + t.carried[i], k, r);
      t.difference[i] = error = t.weight[i] - t.steps[i] * scale;
    } else if (chain == Chain::kDescend) {
      const float value = t.steps[i] * scale;
      t.steps[i] = t.steps_for(std::fma(t.carried[i], t.inverse[static_cast<std::size_t>(k)], value), k, r);
      const float fresh = t.steps[i] * scale;
      t.difference[i] = t.weight[i] - fresh;
      error = value - fresh;
    } else if (chain == Chain::kTry) {
      const float v = t.weight[i] + t.carried[i], value = t.steps_for(v, k, r) * scale, left = v - value;
      float& loss = t.loss[static_cast<std::size_t>(r)];
      loss = std::fma(left * t.cost[static_cast<std::size_t>(k)], left, loss);
      error = t.weight[i] - value;
    } else {
      t.difference[i] = error = 0.0f - t.carried[i];
    }
    for (std::int64_t j = k + 1; j < t.columns; ++j)
      t.carried[t.at(j, r)] =
          std::fma(t.factors[static_cast<std::size_t>(k * t.columns + j)], error, t.carried[t.at(j, r)]);
  }
}

TEST(Tile, ChainsAreThoseOfOneRowAlone) {
  for (const CpuKernels* level : present_levels())
    for (const std::int64_t columns : {1, 5, 8, 9, 31, 64})
      for (const Chain chain : {Chain::kRound, Chain::kDescend, Chain::kSolve, Chain::kTry}) {
        Tile got(*level, columns), want = got;
        (chain == Chain::kRound     ? level->tile_round
         : chain == Chain::kDescend ? level->tile_descend
         : chain == Chain::kTry     ? level->tile_try
                                    : level->tile_solve)(got.view());
        for (std::int64_t r = 0; r < want.rows; ++r) follow(want, chain, r);
        EXPECT_EQ(got.steps, want.steps) << level->name << " " << columns;
        EXPECT_EQ(got.loss, want.loss) << level->name << " " << columns;
        EXPECT_EQ(got.difference, want.difference) << level->name << " " << columns;
      }
}

TEST(Tile, ScaleLossesDotsAndDifferencesAreThoseOfOneRowAlone) {
  for (const CpuKernels* level : present_levels()) {
    Tile t(*level, 37);
    const auto rows = static_cast<std::size_t>(t.rows);
    const std::vector<float> importance = [] {
      std::vector<float> squares = normal_values(37, 9);
      for (float& v : squares) v *= v;
      return squares;
    }();
    std::vector<float> loss(rows), dot(rows), rest(t.weight.size());
    level->tile_scale_loss(loss.data(), t.weight.data(), importance.data(), 37, t.scale.data(), t.zero.data(),
                           kTop);
    level->tile_dot(dot.data(), t.weight.data(), t.carried.data(), 37);
    level->tile_subtract(rest.data(), t.weight.data(), t.scale.data(), t.steps.data(), 37);
    for (std::size_t r = 0; r < rows; ++r) {
      float sum = 0, product = 0;
      const float scale = t.scale[r], inverse = 1.0f / scale, zero = t.zero[r];
      for (std::size_t k = 0; k < 37; ++k) {
        const float w = t.weight[k * rows + r];
        const float steps = std::min(kTop - zero, std::max(-zero, std::nearbyint(w * inverse)));
        const float e = w - steps * scale;
        sum = std::fma(e * importance[k], e, sum);
        product = std::fma(w, t.carried[k * rows + r], product);
        EXPECT_EQ(rest[k * rows + r], w - scale * t.steps[k * rows + r]) << level->name;
      }
      EXPECT_EQ(loss[r], sum) << level->name;
      EXPECT_EQ(dot[r], product) << level->name;
    }
  }
}

TEST(Tile, DoubleProductsAreOneChainOfFusedMultiplyAdds) {
  for (const CpuKernels* level : present_levels())
    for (const std::int64_t rows : {1, 2, 5, 6, 13})
      for (const std::int64_t depth : {0, 1, 7, 64})
        for (const bool accumulate : {false, true}) {
          const std::int64_t panel = level->panel_f64, c_row = panel + 3, a_row = depth + 2;
          ASSERT_EQ(64 % panel, 0);
          const auto doubles = [](std::int64_t n, unsigned seed) {
            const std::vector<float> values = normal_values(static_cast<std::size_t>(n), seed);
            return std::vector<double>(values.begin(), values.end());
          };
          std::vector<double> c = doubles(rows * c_row, 1), a = doubles(rows * a_row, 2),
                              b = doubles(depth * panel + 1, 3), want = c;
          for (double& v : a) v /= 3;  // more digits than FP32 has
          for (std::int64_t i = 0; i < rows; ++i)
            for (std::int64_t j = 0; j < panel; ++j) {
              double& sum = want[static_cast<std::size_t>(i * c_row + j)];
              if (!accumulate) sum = 0;
              for (std::int64_t u = 0; u < depth; ++u)
                sum = std::fma(a[static_cast<std::size_t>(i * a_row + u)],
                               b[static_cast<std::size_t>(u * panel + j)], sum);
            }
          level->gemm_f64(c.data(), c_row, a.data(), a_row, b.data(), rows, depth, accumulate);
          EXPECT_EQ(c, want) << level->name << " " << rows << " x " << depth;
        }
}

}  // namespace
}  // namespace llmq

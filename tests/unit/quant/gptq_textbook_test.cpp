// GPTQ against the textbook: explicit inverse, FP64, one column at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "gptq_fixture.h"
#include "quant/methods/gram_loss.h"
#include "quant/methods/rounding.h"
#include "support/tolerance.h"

namespace llmq {
namespace {

using testing::gamma;

using Square = std::vector<std::vector<double>>;

Square zero_square(std::size_t n) { return Square(n, std::vector<double>(n)); }

Square lower_factor(const Square& a) {
  const std::size_t n = a.size();
  Square l = zero_square(n);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = a[i][j];
      for (std::size_t k = 0; k < j; ++k) sum -= l[i][k] * l[j][k];
      l[i][j] = i == j ? std::sqrt(sum) : sum / l[j][j];
    }
  return l;
}

Square inverse_of(Square a) {  // Gauss and Jordan; a is positive definite, so no pivoting
  const std::size_t n = a.size();
  Square inverse = zero_square(n);
  for (std::size_t i = 0; i < n; ++i) inverse[i][i] = 1;
  for (std::size_t p = 0; p < n; ++p) {
    const double pivot = a[p][p];
    for (std::size_t j = 0; j < n; ++j) a[p][j] /= pivot, inverse[p][j] /= pivot;
    for (std::size_t i = 0; i < n; ++i) {
      const double factor = a[i][p];
      if (i == p || factor == 0) continue;
      for (std::size_t j = 0; j < n; ++j)
        a[i][j] -= factor * a[p][j], inverse[i][j] -= factor * inverse[p][j];
    }
  }
  return inverse;
}

struct Textbook {
  std::vector<std::vector<int>> codes;  // by place
  // The distance of a value to the nearest tie or clamp that would change its code, and what FP32 may be off
  // by.
  std::vector<std::vector<double>> margin, bound;
};

GroupGrid textbook_grid(const std::vector<double>& w, const QuantScheme& scheme) {
  const std::vector<float> rounded(w.begin(), w.end());
  return grid_for(find_range(rounded.data(), static_cast<std::int64_t>(rounded.size())), scheme);
}

// The published algorithm on the permuted problem. group[p]: the group of place p.
Textbook textbook(const GptqFixture& f, const ColumnOrder& order, bool fixed_scales) {
  const auto n = static_cast<std::size_t>(f.channels);
  const auto width = static_cast<std::size_t>(f.scheme.group_size);
  Square h = zero_square(n);
  double mean = 0;
  for (std::size_t i = 0; i < n; ++i)
    mean += f.stats.gram_at(static_cast<std::int64_t>(i), static_cast<std::int64_t>(i));
  mean /= static_cast<double>(n);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j)
      h[i][j] = f.stats.gram_at(order.columns[i], order.columns[j]) + (i == j ? 0.01 * mean : 0);
  const Square l = lower_factor(inverse_of(h));  // U = l^T
  Textbook result;
  for (std::int64_t row = 0; row < f.rows; ++row) {
    const float* const original = f.weight.data() + row * f.channels;
    std::vector<GroupGrid> grids((n + width - 1) / width);
    for (std::size_t g = 0; fixed_scales && g < grids.size(); ++g)
      grids[g] = textbook_grid(
          std::vector<double>(original + g * width, original + std::min(n, (g + 1) * width)), f.scheme);
    std::vector<double> w(n), moved(n);
    for (std::size_t p = 0; p < n; ++p) w[p] = original[order.columns[p]];
    std::vector<int> codes(n);
    std::vector<double> margin(n), bound(n);
    for (std::size_t p = 0; p < n; ++p) {
      const auto g = static_cast<std::size_t>(order.group[p]);
      if (!fixed_scales && (p == 0 || order.group[p] != order.group[p - 1])) {
        std::vector<double> members;
        for (std::size_t q = p; q < n && order.group[q] == order.group[p]; ++q) members.push_back(w[q]);
        grids[g] = textbook_grid(members, f.scheme);
      }
      const GroupGrid grid = grids[g];
      const double steps = w[p] / static_cast<double>(grid.scale);
      const double code =
          std::clamp<double>(std::nearbyint(steps) + static_cast<double>(grid.zero), 0, grid.top);
      codes[p] = static_cast<int>(code);
      margin[p] = std::fabs(std::fabs(steps - std::floor(steps)) - 0.5);
      // v = w + sum of p products, then a division: each term is off by gamma(p + 4) of its magnitude.
      bound[p] = gamma(static_cast<double>(p) + 4) * (std::fabs(original[order.columns[p]]) + moved[p]) /
                 std::fabs(static_cast<double>(grid.scale));
      const double error =
          (w[p] - (code - static_cast<double>(grid.zero)) * static_cast<double>(grid.scale)) / l[p][p];
      for (std::size_t q = p; q < n; ++q) {
        w[q] -= error * l[q][p];
        moved[q] += std::fabs(error * l[q][p]);
      }
    }
    result.codes.push_back(codes);
    result.margin.push_back(margin);
    result.bound.push_back(bound);
  }
  return result;
}

class Orders : public ::testing::TestWithParam<RoundingOrder> {};

// Where FP32 cannot tell on which side of a tie a value lies, the codes may part, and with them the rest of
// the row: such rows are few.
TEST_P(Orders, GiveTheTextbooksCodes) {
  const RoundingOrder order_name = GetParam();
  int rows = 0, parted = 0;
  for (std::uint32_t seed = 1; seed <= 6; ++seed)
    for (const bool symmetric : {false, true})
      for (const int bits : {2, 3, 4, 8}) {
        GptqFixture f(12, seed % 2 == 0 ? 72 : 64, 150, seed);  // 72: the last group is short
        f.scheme.bits = bits;
        f.scheme.symmetric = symmetric;
        f.see_inputs();
        std::vector<double> diagonal;
        for (std::int64_t k = 0; k < f.channels; ++k) diagonal.push_back(f.stats.gram_at(k, k));
        const ColumnOrder order = order_columns(order_name, diagonal, f.scheme.group_size);
        const Textbook want = textbook(f, order, order_name == RoundingOrder::kStatic);
        const QuantizedMatrix got = f.quantize(plain_gptq(order_name));
        for (std::size_t row = 0; row < want.codes.size(); ++row, ++rows)
          for (std::size_t p = 0; p < want.codes[row].size(); ++p) {
            const std::size_t at =
                row * static_cast<std::size_t>(f.channels) + static_cast<std::size_t>(order.columns[p]);
            if (got.codes[at] == want.codes[row][p]) continue;
            EXPECT_LE(want.margin[row][p], want.bound[row][p])
                << "row " << row << " place " << p << " bits " << bits;
            ++parted;
            break;
          }
      }
  EXPECT_LE(parted, rows / 50);
}

INSTANTIATE_TEST_SUITE_P(Gptq, Orders,
                         ::testing::Values(RoundingOrder::kNone, RoundingOrder::kAct, RoundingOrder::kStatic,
                                           RoundingOrder::kGar));

}  // namespace
}  // namespace llmq

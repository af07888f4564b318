// Bases of packed pages: scores do not change, sizes are alike, and what few bits lose falls with them.
#include "model/kv_basis.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"

namespace llmq {
namespace {

constexpr std::size_t kDim = 24, kRows = 400;
using Rows = std::vector<std::vector<double>>;

// Rows with few strong directions, an offset, and one channel far larger than the others.
Rows correlated(std::mt19937& random) {
  std::normal_distribution<double> normal;
  Rows directions(4, std::vector<double>(kDim)), rows(kRows, std::vector<double>(kDim));
  for (auto& direction : directions)
    for (double& x : direction) x = normal(random);
  for (auto& row : rows) {
    for (std::size_t i = 0; i < kDim; ++i) row[i] = 0.1 * normal(random) + (i % 5 == 0 ? 2 : 0);
    for (std::size_t d = 0; d < directions.size(); ++d) {
      const double share = normal(random) * (4.0 - static_cast<double>(d));
      for (std::size_t i = 0; i < kDim; ++i) row[i] += share * directions[d][i];
    }
    row[7] *= 10;
  }
  return rows;
}

std::vector<double> moment(const Rows& rows) {
  std::vector<double> sum(kDim * kDim, 0.0);
  for (const auto& row : rows)
    for (std::size_t i = 0; i < kDim; ++i)
      for (std::size_t j = 0; j < kDim; ++j)
        sum[i * kDim + j] += row[i] * row[j] / static_cast<double>(rows.size());
  return sum;
}

std::vector<double> turned(const std::vector<double>& matrix, const std::vector<double>& x) {
  std::vector<double> y(kDim, 0.0);
  for (std::size_t i = 0; i < kDim; ++i)
    for (std::size_t j = 0; j < kDim; ++j) y[i] += matrix[i * kDim + j] * x[j];
  return y;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < kDim; ++i) sum += a[i] * b[i];
  return sum;
}

HeadBasis fitted(const Rows& keys, const Rows& queries) {
  return fit_head_basis(moment(keys), moment(queries));
}

// Mean square of how far scores are off when keys are stored in this format, by a basis or as they are.
double lost(const Rows& keys, const Rows& queries, KvFormat format, const HeadBasis* basis) {
  const KvRow row{format, kDim};
  double sum = 0;
  for (const auto& k : keys) {
    const std::vector<double> in = basis != nullptr ? turned(basis->forward, k) : k;
    const std::vector<float> x(in.begin(), in.end());
    std::vector<unsigned char> bytes(static_cast<std::size_t>(row.bytes()));
    std::vector<float> back(kDim);
    kv_store_row(row, bytes.data(), x.data(), 1);
    kv_load_row(row, back.data(), bytes.data(), 1);
    for (std::size_t q = 0; q < queries.size(); q += 20) {
      const std::vector<double> asked =
          basis != nullptr ? turned(basis->inverse_transposed, queries[q]) : queries[q];
      const double error = dot(asked, std::vector<double>(back.begin(), back.end())) - dot(asked, in);
      sum += error * error;
    }
  }
  return sum;
}

TEST(KvBasis, ScoresStayAndLessIsLost) {
  std::mt19937 random(3);
  const Rows keys = correlated(random), queries = correlated(random);
  const HeadBasis basis = fitted(keys, queries);
  for (std::size_t i = 0; i < 20; ++i) {
    const double exact = dot(queries[i], keys[i]);
    EXPECT_NEAR(dot(turned(basis.inverse_transposed, queries[i]), turned(basis.forward, keys[i])), exact,
                1e-9 * (1 + std::fabs(exact)));
  }
  for (const KvFormat format : {KvFormat::kInt8, KvFormat::kInt5}) {
    const double with = lost(keys, queries, format, &basis), without = lost(keys, queries, format, nullptr);
    EXPECT_LT(with, 0.5 * without) << with << " of " << without;
  }
}

// Keys and queries are of one size in every coordinate, so that steps of all cost alike.
TEST(KvBasis, CoordinatesAreAlike) {
  std::mt19937 random(4);
  const Rows keys = correlated(random), queries = correlated(random);
  const HeadBasis basis = fitted(keys, queries);
  std::vector<double> of_keys(kDim, 0.0), of_queries(kDim, 0.0);
  for (std::size_t r = 0; r < kRows; ++r) {
    const std::vector<double> k = turned(basis.forward, keys[r]),
                              q = turned(basis.inverse_transposed, queries[r]);
    for (std::size_t i = 0; i < kDim; ++i)
      of_keys[i] += k[i] * k[i] / kRows, of_queries[i] += q[i] * q[i] / kRows;
  }
  // 24 is mixed in blocks of 8, the ridge adds a little to what was seen.
  for (std::size_t i = 0; i < kDim; ++i) {
    EXPECT_NEAR(of_keys[i] / of_keys[i / 8 * 8], 1, 0.05);
    EXPECT_NEAR(of_queries[i] / of_keys[i], 1, 0.2) << i;
  }
}

TEST(KvBasis, TheMixtureIsItsOwnInverse) {
  for (const std::size_t n : {2u, 24u, 64u, 80u}) {
    const std::vector<double> h = hadamard_matrix(n);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j) {
        double sum = 0;
        for (std::size_t k = 0; k < n; ++k) sum += h[i * n + k] * h[k * n + j];
        EXPECT_NEAR(sum, i == j ? 1 : 0, 1e-12);
        EXPECT_EQ(h[i * n + j], h[j * n + i]);
      }
  }
}

TEST(KvBasis, NothingSeenIsABasisAndInfinityIsAnError) {
  const std::vector<double> nothing(kDim * kDim, 0.0);
  const HeadBasis basis = fit_head_basis(nothing, nothing);
  for (const double x : basis.forward) EXPECT_TRUE(std::isfinite(x));
  std::vector<double> bad = nothing;
  bad[0] = std::nan("");
  EXPECT_THROW(fit_head_basis(bad, nothing), Error);
  EXPECT_THROW(fit_head_basis(nothing, bad), Error);
}

}  // namespace
}  // namespace llmq

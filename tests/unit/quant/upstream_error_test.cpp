// What a linear takes back against the normal equations solved directly, and what is left of the error
// afterwards.
#include "quant/pipeline/upstream_error.h"

#include <gtest/gtest.h>

#include <Eigen/Dense>
#include <random>

#include "device/backend.h"

namespace llmq {
namespace {

constexpr std::int64_t kReadChannels = 70, kReaderRows = 5,
                       kSeenTokens = 160;  // one more block of the factorization than a whole

struct UpstreamCase {
  std::vector<float> x = std::vector<float>(kSeenTokens * kReadChannels),
                     weight = std::vector<float>(kReaderRows * kReadChannels);
  std::vector<double> lacking = std::vector<double>(kSeenTokens * kReaderRows);  // e_t
  std::vector<double> missing = std::vector<double>(kReaderRows * kReadChannels);
  InputStats stats{kReadChannels};
};

UpstreamCase make_upstream_case() {
  UpstreamCase c;
  std::mt19937 generator(11);
  std::normal_distribution<float> normal;
  for (float& v : c.x) v = normal(generator);
  for (std::int64_t t = 0; t < kSeenTokens; ++t)  // channels that go together
    for (std::int64_t k = 1; k < kReadChannels; k += 2)
      c.x[static_cast<std::size_t>(t * kReadChannels + k)] +=
          2 * c.x[static_cast<std::size_t>(t * kReadChannels + k - 1)];
  for (float& v : c.weight) v = normal(generator);
  for (double& v : c.lacking) v = static_cast<double>(normal(generator));
  for (std::int64_t t = 0; t < kSeenTokens; ++t)  // part of what lacks is a function of x
    for (std::int64_t n = 0; n < kReaderRows; ++n)
      c.lacking[static_cast<std::size_t>(t * kReaderRows + n)] +=
          static_cast<double>(c.x[static_cast<std::size_t>(t * kReadChannels + n)]);
  for (std::int64_t t = 0; t < kSeenTokens; ++t)
    for (std::int64_t n = 0; n < kReaderRows; ++n)
      for (std::int64_t k = 0; k < kReadChannels; ++k)
        c.missing[static_cast<std::size_t>(n * kReadChannels + k)] +=
            c.lacking[static_cast<std::size_t>(t * kReaderRows + n)] *
            static_cast<double>(c.x[static_cast<std::size_t>(t * kReadChannels + k)]);
  const auto backend = make_reference_backend();
  c.stats.add(*backend, TensorView(c.x.data(), DType::kF32, {kSeenTokens, kReadChannels}));
  return c;
}

std::vector<float> taken_back(const UpstreamCase& c, double share, std::int64_t tokens = kSeenTokens,
                              int threads = 2, const char* device = "cpu") {
  std::vector<float> weight = c.weight;
  apply_upstream_correction(weight, c.missing, tokens, c.stats, share, *make_backend({device, threads}));
  return weight;
}

// Both solves are backward stable: |difference| <= c K 2^-53 cond |shift|, far below one FP32 rounding of the
// sum, 2^-24 (|w| + |shift|), with cond < (sum of squares) / lambda < 1e4 here.
TEST(UpstreamError, IsTheNormalEquationsShare) {
  const UpstreamCase c = make_upstream_case();
  Eigen::MatrixXd g(kReadChannels, kReadChannels);
  for (std::int64_t i = 0; i < kReadChannels; ++i)
    for (std::int64_t j = 0; j < kReadChannels; ++j) g(i, j) = c.stats.gram_at(i, j);
  g += 0.1 * g.diagonal().mean() * Eigen::MatrixXd::Identity(kReadChannels, kReadChannels);
  const Eigen::Map<const Eigen::Matrix<double, kReaderRows, kReadChannels, Eigen::RowMajor>> missing(
      c.missing.data());
  const Eigen::MatrixXd shift = g.ldlt().solve(missing.transpose()).transpose();
  const std::vector<float> half = taken_back(c, 0.5);
  const std::vector<float> of_a_half = taken_back(c, 0.5, kSeenTokens / 2);
  for (std::int64_t n = 0; n < kReaderRows; ++n)
    for (std::int64_t k = 0; k < kReadChannels; ++k) {
      const auto at = static_cast<std::size_t>(n * kReadChannels + k);
      const double w = static_cast<double>(c.weight[at]),
                   bound = 0x1p-22 * (std::fabs(w) + std::fabs(shift(n, k)));
      EXPECT_NEAR(half[at], w + 0.5 * shift(n, k), bound);
      EXPECT_NEAR(of_a_half[at], w + shift(n, k), bound);  // sums over half of the tokens count twice
    }
}

// Any share of the ridge solution up to all of it leaves less than there was.
TEST(UpstreamError, LeavesLessOfIt) {
  const UpstreamCase c = make_upstream_case();
  const auto left = [&](const std::vector<float>& weight) {
    double energy = 0;
    for (std::int64_t t = 0; t < kSeenTokens; ++t)
      for (std::int64_t n = 0; n < kReaderRows; ++n) {
        double e = c.lacking[static_cast<std::size_t>(t * kReaderRows + n)];
        for (std::int64_t k = 0; k < kReadChannels; ++k) {
          const auto at = static_cast<std::size_t>(n * kReadChannels + k);
          e -= static_cast<double>(weight[at] - c.weight[at]) *
               static_cast<double>(c.x[static_cast<std::size_t>(t * kReadChannels + k)]);
        }
        energy += e * e;
      }
    return energy;
  };
  const double before = left(c.weight), half = left(taken_back(c, 0.5)), whole = left(taken_back(c, 1));
  EXPECT_LT(half, 0.9 * before);
  EXPECT_LT(whole, half);
}

TEST(UpstreamError, IsTheSameAtAnyThreadCountAndOnADeviceThatAddsInTheHostsOrder) {
  const UpstreamCase c = make_upstream_case();
  EXPECT_EQ(taken_back(c, 0.5, kSeenTokens, 1), taken_back(c, 0.5, kSeenTokens, 1, "emulated"));
  EXPECT_EQ(taken_back(c, 0.5, kSeenTokens, 1), taken_back(c, 0.5, kSeenTokens, 3));
}

}  // namespace
}  // namespace llmq

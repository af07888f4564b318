// Cholesky factors by a device: they give the matrix back within what rounding allows, and solve; what has no
// factor is said to have none. On a device this is the library's; in the emulation the host's own behind the
// same interface, whose bits must come through.
#include "device/factorizer.h"

#include <cstdio>
#include <limits>
#include <random>

#include "kernels/backend/backend_fixture.h"

namespace llmq::testing {
namespace {

// Positive definite, no two rows or columns alike: D T D + I of a T with 1 / (1 + distance).
double element(std::int64_t i, std::int64_t j) {
  const auto weight = [](std::int64_t k) { return 1 + static_cast<double>(k % 7) / 7; };
  return weight(i) * weight(j) / (1 + std::fabs(static_cast<double>(i - j))) + (i == j ? 1 : 0);
}

LowerTriangle matrix_of(std::int64_t size) {
  LowerTriangle matrix(size);
  for (std::int64_t i = 0; i < size; ++i)
    for (std::int64_t j = 0; j <= i; ++j) matrix.row(i)[j] = element(i, j);
  return matrix;
}

// The greatest |A - L L^T| / sqrt(a_ii a_jj): of every element, of a large square some.
double residual(const LowerTriangle& factor) {
  const std::int64_t size = factor.size(), step = size <= 512 ? 1 : 61;
  double greatest = 0;
  for (std::int64_t i = size - 1; i >= 0; i -= step)
    for (std::int64_t j = i; j >= 0; j -= step) {
      double sum = element(i, j);
      for (std::int64_t k = 0; k <= j; ++k) sum -= factor.row(i)[k] * factor.row(j)[k];
      greatest = std::max(greatest, std::fabs(sum) / std::sqrt(element(i, i) * element(j, j)));
    }
  return greatest;
}

// Higham, theorem 10.3, with what products by inverted blocks cost: the condition number of a block (below
// 1e2 here).
double bound(std::int64_t size) { return 1e2 * static_cast<double>(size + 1) * 0x1p-53; }

class FactorizerTest : public BackendTest {
 protected:
  void SetUp() override {
    BackendTest::SetUp();
    if (IsSkipped()) return;
    factorizer_ = backend().extensions().factorizer;
    ASSERT_NE(factorizer_, nullptr);
    if (!factorizer_->why_the_host().empty()) GTEST_SKIP() << factorizer_->why_the_host();
  }
  void expect_factor(std::int64_t size) {
    ThreadPool pool(2);
    LowerTriangle host = matrix_of(size), device(size);
    const std::unique_ptr<DeviceFactor> factor = factorizer_->factorize(host);
    ASSERT_NE(factor, nullptr) << size;
    factor->read(device);
    ASSERT_TRUE(cholesky_lower(host, pool));
    const double found = residual(device), of_host = residual(host);
    std::printf("%lld: the device's factor leaves %.2e of the matrix, the host's %.2e\n",
                static_cast<long long>(size), found, of_host);
    EXPECT_LE(found, bound(size)) << size;
    EXPECT_LE(of_host, bound(size)) << size;
    for (std::int64_t i = size; i < device.padded(); ++i)
      for (std::int64_t j = 0; j <= i; ++j) ASSERT_EQ(device.row(i)[j], i == j ? 1 : 0);
    expect_solution(*factor, device);
  }
  // Both solves are backward stable: see tests/unit/quant/factorization_test.cpp.
  void expect_solution(const DeviceFactor& factor, const LowerTriangle& read) {
    const std::int64_t size = read.size(), stride = read.padded(), count = 5;
    std::mt19937 generator(5);
    std::normal_distribution<double> normal;
    std::vector<double> rows(static_cast<std::size_t>(count * stride));
    for (std::int64_t n = 0; n < count; ++n)
      for (std::int64_t k = 0; k < size; ++k)
        rows[static_cast<std::size_t>(n * stride + k)] = normal(generator);
    std::vector<double> solved = rows;
    factor.solve(solved);
    for (std::int64_t n = 0; n < count; ++n) {
      const double* const x = solved.data() + n * stride;
      double norm = 0;
      for (std::int64_t j = 0; j < size; ++j) norm += std::fabs(x[j]);
      for (std::int64_t k = size - 1; k >= 0; k -= size <= 512 ? 1 : 61) {
        double sum = 0;
        for (std::int64_t j = 0; j < size; ++j) sum += x[j] * element(j, k);
        ASSERT_NEAR(sum, rows[static_cast<std::size_t>(n * stride + k)],
                    1e2 * static_cast<double>(size + 1) * 0x1p-53 * norm * 5)
            << size << ": " << k;
      }
      for (std::int64_t k = size; k < stride; ++k) ASSERT_EQ(x[k], 0);
    }
  }
  Factorizer* factorizer_ = nullptr;
};

TEST_P(FactorizerTest, FactorsAndSolves) {
  for (const std::int64_t size : {1, 63, 64, 65, 200, 512}) expect_factor(size);
}

TEST_P(FactorizerTest, ModelShapes) { expect_factor(GetParam().name == "cuda" ? 5120 : 600); }

TEST_P(FactorizerTest, SaysWhatHasNoFactor) {
  for (const double bad :
       {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    for (const std::int64_t place : {0, 70, 299}) {
      LowerTriangle matrix = matrix_of(300);
      matrix.row(place)[place] = bad;
      EXPECT_EQ(factorizer_->factorize(matrix), nullptr) << bad << " at " << place;
    }
}

// A Gram matrix in places: turned around, one column dead, in blocks that no multiple of 128 fills.
class PlacedGramTest : public FactorizerTest {
 protected:
  static constexpr std::int64_t kSize = 300, kDead = 17;
  void SetUp() override {
    FactorizerTest::SetUp();
    for (std::int64_t i = 0; i < kSize; ++i)
      for (std::int64_t j = i; j < kSize; ++j) triangle_.push_back(element(i, j));
    for (std::int64_t place = 0; place < kSize; ++place) {
      const auto column = static_cast<std::int32_t>((place * 7 + 3) % kSize);
      order_.push_back(column == kDead ? ~column : column);
    }
    for (const bool upper : {true, false}) {
      std::size_t offset = 0;
      for (const std::int64_t begin : {0, 128, 150, 278}) {
        const std::int64_t end = begin == 0     ? 128
                                 : begin == 128 ? 150
                                 : begin == 150 ? 278
                                                : kSize,
                           rows = upper ? end : kSize;
        (upper ? upper_ : square_).push_back({begin, end - begin, rows, offset});
        offset += static_cast<std::size_t>(rows * (end - begin));
      }
    }
  }
  // H + lambda I in places.
  double placed(std::int64_t i, std::int64_t j, double lambda) const {
    const auto column = [&](std::int64_t place) {
      const std::int32_t at = order_[static_cast<std::size_t>(place)];
      return at < 0 ? ~at : at;
    };
    const double value = i == j && column(i) == kDead ? 1 : element(column(i), column(j));
    return value + (i == j ? lambda : 0);
  }
  std::vector<float> read(const Buffer& values, const std::vector<ColumnBlock>& blocks) {
    const auto count =
        static_cast<std::int64_t>(blocks.back().offset) + blocks.back().rows * blocks.back().width;
    return get(backend(), values.view(DType::kF32, Shape{1, count}));
  }
  std::vector<double> triangle_;
  std::vector<std::int32_t> order_;
  std::vector<ColumnBlock> upper_, square_;
};

TEST_P(PlacedGramTest, PanelsAreTheHostsOfTheSameFactor) {
  const double lambda = 0.25;
  const std::unique_ptr<PlacedGram> gram = factorizer_->place(triangle_, kSize);
  ASSERT_TRUE(gram->factorize(order_, lambda));
  LowerTriangle reversed(kSize);
  for (std::int64_t i = 0; i < kSize; ++i)
    for (std::int64_t j = 0; j <= i; ++j) reversed.row(i)[j] = placed(kSize - 1 - j, kSize - 1 - i, lambda);
  const std::unique_ptr<DeviceFactor> factor = factorizer_->factorize(reversed);
  ASSERT_NE(factor, nullptr);
  factor->read(reversed);
  const auto r = [&](std::int64_t i, std::int64_t j) { return reversed.row(kSize - 1 - i)[kSize - 1 - j]; };
  std::vector<double> diagonal(kSize);
  const std::vector<float> upper = read(gram->unit_upper(upper_, diagonal), upper_),
                           square = read(gram->square(order_, lambda, square_), square_);
  for (std::int64_t k = 0; k < kSize; ++k) ASSERT_EQ(diagonal[static_cast<std::size_t>(k)], r(k, k));
  for (const ColumnBlock& block : upper_)
    for (std::int64_t e = 0; e < block.rows * block.width; ++e) {
      const std::int64_t i = e / block.width, j = block.begin + e % block.width;
      ASSERT_EQ(upper[block.offset + static_cast<std::size_t>(e)],
                i > j ? 0.0f : static_cast<float>(r(i, j) / r(j, j)))
          << i << ", " << j;
    }
  for (const ColumnBlock& block : square_)
    for (std::int64_t e = 0; e < block.rows * block.width; ++e) {
      const std::int64_t i = e / block.width, j = block.begin + e % block.width;
      ASSERT_EQ(square[block.offset + static_cast<std::size_t>(e)], static_cast<float>(placed(i, j, lambda)))
          << i << ", " << j;
    }
}

TEST_P(PlacedGramTest, AGreaterLambdaIsTriedOnTheSameGram) {
  const std::unique_ptr<PlacedGram> gram = factorizer_->place(triangle_, kSize);
  EXPECT_FALSE(gram->factorize(order_, -100));
  EXPECT_TRUE(gram->factorize(order_, 1));
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    triangle_[triangle_.size() - 2] = bad;
    EXPECT_FALSE(factorizer_->place(triangle_, kSize)->factorize(order_, 1)) << bad;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, PlacedGramTest,
                         ::testing::Values(BackendParam{"cuda_emulated", 1}, BackendParam{"cuda", 1}),
                         param_name);

INSTANTIATE_TEST_SUITE_P(Backends, FactorizerTest,
                         ::testing::Values(BackendParam{"cuda_emulated", 1}, BackendParam{"cuda", 1}),
                         param_name);

}  // namespace
}  // namespace llmq::testing

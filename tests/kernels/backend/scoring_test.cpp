// Scores, divergence, Gram matrices, channel statistics and quadratic forms on every backend.
#include <numeric>

#include "backend_fixture.h"
#include "device/gram_total.h"

namespace llmq::testing {
namespace {

constexpr double kFp64Roundoff = 0x1p-53;

class Scoring : public BackendTest {};

// log p = (x_t - max) - log(sum exp): the sum of V positive terms is off by gamma(V + 2) relative (each exp
// to an ulp or two), the log by as much absolutely; the subtractions round once each at the size of the
// logits.
double log_prob_bound(std::int64_t vocabulary, double greatest_logit) {
  return gamma(static_cast<double>(vocabulary) + 4, kFp64Roundoff) +
         gamma(4, kFp64Roundoff) * 2 * greatest_logit;
}

TEST_P(Scoring, ScoreRows) {
  for (const std::int64_t vocabulary : {1, 2, 17, 1000, 4097}) {
    const std::int64_t rows = 5;
    Numbers numbers(static_cast<std::uint64_t>(vocabulary));
    std::vector<float> logits = numbers.values(rows * vocabulary, 0, 30);
    // Equal greatest logits: the lowest index wins.
    logits[static_cast<std::size_t>(vocabulary - 1)] = logits[static_cast<std::size_t>(vocabulary / 2)] =
        40.0f;
    std::vector<std::int32_t> targets;
    for (std::int64_t r = 0; r < rows; ++r)
      targets.push_back(static_cast<std::int32_t>(numbers.below(vocabulary)));
    const auto run = [&](Backend& backend) {
      const Placed placed = put(backend, DType::kF32, {rows, vocabulary}, logits);
      std::vector<RowScore> scores(static_cast<std::size_t>(rows));
      backend.score_rows(placed.view, targets, scores);
      return scores;
    };
    const std::vector<RowScore> want = run(oracle()), got = run(backend());
    EXPECT_EQ(want[0].argmax, vocabulary / 2);
    for (std::size_t r = 0; r < got.size(); ++r) {
      EXPECT_EQ(got[r].argmax, want[r].argmax);
      EXPECT_NEAR(got[r].log_prob, want[r].log_prob, 2 * log_prob_bound(vocabulary, 40));
    }
  }
}

// The logits' own digits: of rows in one block and several, of vocabularies that end inside a tile, of a
// depth whose rows are spread, which no device does.
TEST_P(Scoring, ProductsScoreAsTheirLogitsDo) {
  const std::int64_t spread = is_emulated(GetParam()) ? 64 : 512;
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16})
    for (const auto& [rows, width, depth] :
         {std::array<std::int64_t, 3>{1, 1, 3}, {5, 511, 64}, {97, 1030, 17}, {200, 513, spread}}) {
      Numbers numbers(static_cast<std::uint64_t>(width));
      const Placed x =
          put(backend(), activation_dtype(compute), {rows, depth}, numbers.values(rows * depth, 0, 2));
      const std::vector<float> weight = numbers.values(width * depth);
      const auto head = backend().prepare(TensorView(weight.data(), DType::kF32, {width, depth}), compute);
      std::vector<std::int32_t> targets;
      for (std::int64_t r = 0; r < rows; ++r)
        targets.push_back(static_cast<std::int32_t>(numbers.below(width)));
      targets.back() = static_cast<std::int32_t>(width - 1);
      const Placed logits = poisoned(backend(), DType::kF32, {rows, width});
      std::vector<RowScore> want(targets.size()), got(targets.size());
      backend().linear(logits.view, x.view, *head, {});
      for (const float softcap : {0.0f, 1.5f}) {
        if (softcap != 0) backend().softcap(logits.view, softcap);
        backend().score_rows(logits.view, targets, want);
        backend().score_products(x.view, *head, softcap, targets, got);
        for (std::size_t r = 0; r < got.size(); ++r) {
          ASSERT_EQ(got[r].argmax, want[r].argmax) << rows << " x " << width << ", row " << r;
          ASSERT_EQ(got[r].log_prob, want[r].log_prob) << rows << " x " << width << ", row " << r;
        }
      }
    }
}

TEST_P(Scoring, Divergence) {
  for (const std::int64_t vocabulary : {1, 2, 17, 1000, 4097}) {
    const std::int64_t rows = 4;
    Numbers numbers(static_cast<std::uint64_t>(vocabulary) + 1);
    const std::vector<float> p = numbers.values(rows * vocabulary, 0, 10),
                             q = numbers.values(rows * vocabulary, 0, 10);
    const auto run = [&](Backend& backend, const std::vector<float>& left, const std::vector<float>& right) {
      const Placed a = put(backend, DType::kF32, {rows, vocabulary}, left),
                   b = put(backend, DType::kF32, {rows, vocabulary}, right);
      std::vector<double> kl(static_cast<std::size_t>(rows), -1);
      backend.divergence(a.view, b.view, kl);
      return kl;
    };
    const std::vector<double> want = run(oracle(), p, q), got = run(backend(), p, q);
    for (std::size_t r = 0; r < got.size();
         ++r)  // shares sum to 1, |log ratio| <= 2 * 20 + log terms: errors of logs, shares and V sums
      EXPECT_NEAR(got[r], want[r],
                  2 * (2 * log_prob_bound(vocabulary, 10) +
                       40 * gamma(2 * static_cast<double>(vocabulary) + 8, kFp64Roundoff)));
    for (const double kl : run(backend(), p, p)) EXPECT_EQ(kl, 0.0);
  }
}

TEST_P(Scoring, Gram) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const std::int64_t k : {1, 3, 16, 17, 65, 130})
      for (const std::int64_t rows : {1, 2, 33, 257, 2051}) {  // more than one sum takes at once
        if (rows > 2048 && k > 65) continue;
        Numbers numbers(static_cast<std::uint64_t>(k * 1000 + rows));
        const std::vector<float> x = numbers.values(rows * k), start = numbers.values(k * k);
        const auto run = [&](Backend& backend, const std::vector<float>& from, const std::vector<float>& g0) {
          const Placed in = put(backend, dtype, {rows, k}, from), g = put(backend, DType::kF32, {k, k}, g0);
          backend.gram(g.view, in.view);
          std::vector<float> square = get(backend, g.view);
          for (std::int64_t i = 0; i < k; ++i)  // the lower triangle is nobody's business
            for (std::int64_t j = 0; j < i; ++j) square[static_cast<std::size_t>(i * k + j)] = 0;
          return square;
        };
        const std::vector<float> want = run(oracle(), x, start),
                                 sums = run(oracle(), absolute(x), absolute(start));
        std::vector<double> bound;
        for (std::size_t i = 0; i < want.size(); ++i)
          bound.push_back(fp32_dot_bound(rows + 1, sums[i] * (1 + 2 * kFp32Roundoff)) +
                          fp32_rounding_bound(want[i]));
        std::vector<float> got = run(backend(), x, start);
        ASSERT_EQ(outside(got, widened(want), bound), "")
            << dtype_row(dtype).name << " K " << k << " T " << rows;
        const std::vector<float> stored = rounded(dtype, x);
        if (rows > 2048) continue;  // one token of so many is within the bound
        got.back() -= stored[static_cast<std::size_t>(k - 1)] *
                      stored[static_cast<std::size_t>(k - 1)];  // token 0 left out
        EXPECT_NE(outside(got, widened(want), bound), "");
      }
}

// Squares of scales that an FP64 total does not hold side by side: most places lack something.
std::vector<std::vector<float>> uneven_squares(std::int64_t k) {
  Numbers numbers(static_cast<std::uint64_t>(k));
  std::vector<std::vector<float>> squares;
  for (const float scale : {1.0f, 0x1p36f, 0x1p-20f, 3.0f, 0x1p40f}) {
    squares.push_back(numbers.values(k * k, 10));
    for (float& value : squares.back()) value *= scale;
  }
  return squares;
}

ExactSums sums_of(const std::vector<std::vector<float>>& squares, std::int64_t k) {
  ExactSums sums(triangle_place(k, k));
  for (const std::vector<float>& square : squares)
    for (std::int64_t i = 0; i < k; ++i)
      sums.add(triangle_place(i, k), std::span(square).subspan(static_cast<std::size_t>(i * k + i),
                                                               static_cast<std::size_t>(k - i)));
  return sums;
}

std::vector<double> rounded_sums(ExactSums sums) {
  const ZeroedNumbers<double> values = std::move(sums).round();
  return {values.begin(), values.end()};
}

void expect_zero_triangle(Backend& backend, const TensorView& g) {
  const std::vector<float> left = get(backend, g);
  for (std::int64_t row = 0; row < g.rows(); ++row)
    for (std::int64_t column = row; column < g.cols(); ++column)
      EXPECT_EQ(left[static_cast<std::size_t>(row * g.cols() + column)], 0.0f);
}

TEST_P(Scoring, DrainedGramsAddUpAndLeaveZeros) {
  for (const std::int64_t k : {1, 3, 17, 130, 600}) {
    std::vector<std::vector<float>> squares = uneven_squares(k);
    ExactSums got(triangle_place(k, k));
    for (const std::vector<float>& square : squares) {
      const Placed g = put(backend(), DType::kF32, {k, k}, square);
      backend().drain_gram(got, g.view);
      expect_zero_triangle(backend(), g.view);
    }
    std::reverse(squares.begin(), squares.end());
    EXPECT_GT(got.residues(), 0u);
    EXPECT_EQ(rounded_sums(std::move(got)), rounded_sums(sums_of(squares, k))) << k;
  }
}

// A total on the device is the host's, in any order; its list is full with each square of 130 channels.
TEST_P(Scoring, GramTotalsHaveTheBitsOfDrainedOnes) {
  GramTotals* const totals = backend().extensions().gram_totals;
  if (totals == nullptr) GTEST_SKIP() << "the sums are the host's";
  for (const std::int64_t k : {1, 3, 17, 130}) {
    const std::vector<std::vector<float>> squares = uneven_squares(k);
    EXPECT_EQ(triangle_place(k, k) > ExactSums::room_for(triangle_place(k, k)), k == 130);
    const std::unique_ptr<GramTotal> total = totals->gram_total(k), other = totals->gram_total(k);
    ASSERT_NE(total, nullptr);
    ASSERT_NE(other, nullptr);
    for (std::size_t i = squares.size(); i-- > 0;) {
      const Placed g = put(backend(), DType::kF32, {k, k}, squares[i]);
      (i == 2 ? other : total)->drain(g.view);
      expect_zero_triangle(backend(), g.view);
    }
    ExactSums got(triangle_place(k, k));
    total->read(got);
    other->read(got);
    EXPECT_EQ(rounded_sums(std::move(got)), rounded_sums(sums_of(squares, k))) << k;
  }
}

TEST_P(Scoring, ClearedTensorsAreZero) {
  const Placed whole = put(backend(), DType::kF32, {5, 6}, std::vector<float>(30, 2.0f));
  TensorView part = whole.view;
  part.shape = {5, 4};
  backend().clear(part);
  const std::vector<float> left = get(backend(), whole.view);
  for (std::size_t i = 0; i < left.size(); ++i) EXPECT_EQ(left[i], i % 6 < 4 ? 0.0f : 2.0f) << i;
}

TEST_P(Scoring, ChannelStats) {
  for (const auto& one :
       {std::pair{DType::kF32, 67}, {DType::kBF16, 67}, {DType::kF32, 200}, {DType::kBF16, 200}}) {
    const DType dtype = one.first;
    const std::int64_t k = one.second;
    const std::int64_t rows = 131;
    Numbers numbers(9);
    const std::vector<float> x = numbers.values(rows * k, 10);
    const auto run = [&](Backend& backend, std::vector<double>& sum, std::vector<float>& greatest) {
      const Placed in = put(backend, dtype, {rows, k}, x);
      backend.channel_stats(in.view, sum, greatest);
    };
    std::vector<double> want_sum(static_cast<std::size_t>(k), 1.5), got_sum = want_sum;
    std::vector<float> want_max(static_cast<std::size_t>(k), 0.25f), got_max = want_max;
    run(oracle(), want_sum, want_max);
    run(backend(), got_sum, got_max);
    EXPECT_TRUE(same_bits(got_max, want_max));
    for (std::size_t i = 0; i < got_sum.size(); ++i)  // both sum FP64 of exact terms, in any order
      EXPECT_NEAR(got_sum[i], want_sum[i],
                  2 * gamma(static_cast<double>(rows) + 1, kFp64Roundoff) * want_sum[i]);
  }
}

TEST_P(Scoring, QuadraticForm) {
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16})
    for (const std::int64_t k : {1, 3, 16, 17, 64, 129, 576}) {
      const std::int64_t rows = 7;
      Numbers numbers(static_cast<std::uint64_t>(k));
      const std::vector<float> d = numbers.values(rows * k, 3), half = numbers.values(k * k);
      std::vector<float> g = half;
      for (std::int64_t i = 0; i < k; ++i)
        for (std::int64_t j = 0; j < i; ++j)
          g[static_cast<std::size_t>(i * k + j)] = half[static_cast<std::size_t>(j * k + i)];
      const auto run = [&](Backend& backend, const std::vector<float>& from,
                           const std::vector<float>& square) {
        const auto weight = backend.prepare(TensorView(square.data(), DType::kF32, Shape{k, k}), compute);
        const Placed in = put(backend, DType::kF32, {rows, k}, from);
        std::vector<double> loss(static_cast<std::size_t>(rows), -1);
        backend.quadratic_form(loss, in.view, *weight);
        return loss;
      };
      const std::vector<double> want = run(oracle(), d, g), sums = run(oracle(), absolute(d), absolute(g)),
                                got = run(backend(), d, g);
      // Two nested sums of K terms and their products in FP32; bfloat16 compute may round d once for each of
      // its two places.
      const double rounding =
          compute == Compute::kBFloat16 ? (1 + kBf16Roundoff) * (1 + kBf16Roundoff) - 1 : 0;
      for (std::size_t r = 0; r < got.size(); ++r)
        EXPECT_NEAR(got[r], want[r],
                    (rounding + (1 + rounding) * gamma(2 * static_cast<double>(k) + 4)) * sums[r])
            << k;
    }
}

INSTANTIATE_TEST_SUITE_P(Every, Scoring, ::testing::ValuesIn(multiplying_backends({1, 2})), param_name);

}  // namespace
}  // namespace llmq::testing

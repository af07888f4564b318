// Rounding against the scalar definition, written again in the plainest way.
#include "quant/methods/rtn.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tensor/stored_float.h"

namespace llmq {
namespace {

std::vector<float> random_weight(std::int64_t count, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<float> weight(static_cast<std::size_t>(count));
  for (float& w : weight) w = static_cast<float>(static_cast<int>(generator() % 2001) - 1000) * 1e-4f;
  return weight;
}

QuantScheme rtn_scheme(int bits, Granularity granularity, int group, bool symmetric, DType scale_dtype) {
  QuantScheme s;
  s.bits = bits;
  s.granularity = granularity;
  s.group_size = group;
  s.symmetric = symmetric;
  s.scale_dtype = scale_dtype;
  return s;
}

// One group by definition: codes against the stored scale.
void expect_group(const std::vector<float>& w, const QuantScheme& s, float scale, int zero,
                  const std::uint8_t* codes, float low, float high) {
  const float top = static_cast<float>((1 << s.bits) - 1);
  const float exact = s.symmetric ? 2 * std::max(-low, high) / top : (high - low) / top;
  ASSERT_EQ(scale, stored_scale(exact, s.scale_dtype));
  ASSERT_EQ(zero, s.symmetric ? s.middle() : static_cast<int>(std::min(std::nearbyintf(-low / scale), top)));
  for (std::size_t k = 0; k < w.size(); ++k) {
    const float code =
        std::min(std::max(std::nearbyintf(w[k] / scale) + static_cast<float>(zero), 0.0f), top);
    ASSERT_EQ(codes[k], static_cast<int>(code)) << k;
  }
}

void expect_rounded(const QuantScheme& s, std::int64_t rows, std::int64_t columns) {
  const std::vector<float> weight = random_weight(rows * columns, 7);
  ThreadPool pool(2);
  const QuantizedMatrix m = round_to_nearest(weight, rows, columns, s, pool);
  const std::int64_t group = s.group_of(columns), groups = m.groups();
  float low = 0, high = 0;
  for (const float w : weight) low = std::min(low, w), high = std::max(high, w);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::vector<float> w(weight.begin() + r * columns + g * group,
                                 weight.begin() + r * columns + std::min((g + 1) * group, columns));
      float l = 0, h = 0;
      for (const float x : w) l = std::min(l, x), h = std::max(h, x);
      if (s.granularity == Granularity::kTensor) l = low, h = high;
      const auto at = static_cast<std::size_t>(r * groups + g);
      ASSERT_NO_FATAL_FAILURE(
          expect_group(w, s, m.scales[at], m.zeros[at], m.codes.data() + r * columns + g * group, l, h))
          << r << ' ' << g;
    }
}

TEST(Rtn, FollowsTheDefinition) {
  for (const int bits : {2, 3, 4, 8})
    for (const bool symmetric : {false, true})
      for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
        expect_rounded(rtn_scheme(bits, Granularity::kGroup, 32, symmetric, dtype), 5, 96);
        expect_rounded(rtn_scheme(bits, Granularity::kGroup, 20, symmetric, dtype), 3, 60);
        expect_rounded(rtn_scheme(bits, Granularity::kChannel, 0, symmetric, dtype), 4, 33);
        expect_rounded(rtn_scheme(bits, Granularity::kTensor, 0, symmetric, dtype), 4, 33);
      }
}

// The ends of a tensor's range may lie in any two rows.
TEST(Rtn, OneRangeForTheWholeTensorWhereverItsEndsLie) {
  ThreadPool pool(2);
  for (std::size_t least = 0; least < 3; ++least)
    for (std::size_t most = 0; most < 3; ++most) {
      std::vector<float> weight(3 * 8, 0.25f);
      weight[least * 8] = -3;
      weight[most * 8 + 7] = 12;
      const QuantizedMatrix m =
          round_to_nearest(weight, 3, 8, rtn_scheme(4, Granularity::kTensor, 0, false, DType::kF32), pool);
      for (std::size_t row = 0; row < 3; ++row) {
        EXPECT_EQ(m.scales[row], 1.0f) << least << ' ' << most;  // (12 + 3) / 15
        EXPECT_EQ(m.zeros[row], 3) << least << ' ' << most;
      }
    }
}

TEST(Rtn, ZeroGroupsStayZero) {
  ThreadPool pool(1);
  const std::vector<float> weight(64);
  for (const bool symmetric : {false, true}) {
    const QuantizedMatrix m = round_to_nearest(
        weight, 1, 64, rtn_scheme(4, Granularity::kGroup, 32, symmetric, DType::kBF16), pool);
    std::vector<float> back(64, 1.0f);
    dequantize(m, back);
    EXPECT_EQ(back, weight);
  }
}

// The error of a weight inside the range is at most half a step of the stored scale; at the ends the stored
// scale and the rounded zero add at most one step more (both are off by at most half a step at the far end:
// 15 steps of relative error 2^-8 are below 1/16, and the zero by 1/2).
TEST(Rtn, ErrorIsBoundedByTheStep) {
  ThreadPool pool(1);
  const std::vector<float> weight = random_weight(64 * 64, 3);
  const QuantizedMatrix m =
      round_to_nearest(weight, 64, 64, rtn_scheme(4, Granularity::kGroup, 32, false, DType::kBF16), pool);
  std::vector<float> back(weight.size());
  dequantize(m, back);
  for (std::size_t i = 0; i < weight.size(); ++i)
    EXPECT_LE(std::fabs(back[i] - weight[i]), 1.5f * m.scales[i / 32]);
}

TEST(Rtn, SameBytesAtAnyThreadCount) {
  const std::vector<float> weight = random_weight(37 * 64, 5);
  const QuantScheme s = rtn_scheme(4, Granularity::kGroup, 32, false, DType::kBF16);
  ThreadPool one(1);
  const QuantizedMatrix expected = round_to_nearest(weight, 37, 64, s, one);
  for (const int threads : {2, 3, 8}) {
    ThreadPool pool(threads);
    const QuantizedMatrix m = round_to_nearest(weight, 37, 64, s, pool);
    EXPECT_EQ(m.codes, expected.codes);
    EXPECT_EQ(m.scales, expected.scales);
    EXPECT_EQ(m.zeros, expected.zeros);
  }
}

TEST(Rounding, ScaledDifferenceIsRoundingBetweenScaleAndInverse) {
  const std::vector<float> weight = random_weight(64, 9);
  std::vector<float> s(64), inverse(64), scaled(64), scratch(64), d(64);
  for (std::size_t k = 0; k < 64; ++k) {
    s[k] = 0.25f + 0.05f * static_cast<float>(k);
    inverse[k] = 1 / s[k];
    scaled[k] = weight[k] * s[k];
  }
  const QuantScheme scheme = rtn_scheme(4, Granularity::kGroup, 32, false, DType::kBF16);
  scaled_difference(weight.data(), 64, 32, s.data(), inverse.data(), scheme, scratch.data(), d.data());
  ThreadPool pool(1);
  std::vector<float> back(64);
  dequantize(round_to_nearest(scaled, 1, 64, scheme, pool), back);
  for (std::size_t k = 0; k < 64; ++k) EXPECT_EQ(d[k], back[k] * inverse[k] - weight[k]);
}

// sum over rows and tokens of (d . x)^2. The loss is a quadratic form of K^2 terms summed in FP32 at worst:
// (2 K + 4) roundings of 2^-24 of the sum of its terms' magnitudes.
TEST(Rtn, LossIsTheSquaredErrorOfTheOutputs) {
  constexpr std::int64_t kRows = 5, kColumns = 32, kTokens = 12;
  const std::vector<float> weight = random_weight(kRows * kColumns, 4),
                           x = random_weight(kTokens * kColumns, 6);
  const auto backend = make_reference_backend();
  InputStats stats(kColumns);
  stats.add(*backend, TensorView(x.data(), DType::kF32, {kTokens, kColumns}));
  const RoundingProblem problem{weight, kRows, kColumns, &stats,
                                rtn_scheme(4, Granularity::kGroup, 32, false, DType::kBF16)};
  const QuantizedMatrix m = make_rtn(Compute::kFloat32)->quantize(problem, *backend);
  std::vector<float> back(weight.size());
  dequantize(m, back);
  double loss = 0, magnitude = 0;
  for (std::size_t row = 0; row < kRows; ++row)
    for (std::size_t t = 0; t < kTokens; ++t) {
      double sum = 0, most = 0;
      for (std::size_t k = 0; k < kColumns; ++k) {
        const double product = (static_cast<double>(back[row * kColumns + k]) - weight[row * kColumns + k]) *
                               x[t * kColumns + k];
        sum += product;
        most += std::fabs(product);
      }
      loss += sum * sum;
      magnitude += most * most;
    }
  EXPECT_GT(loss, 0);
  EXPECT_NEAR(m.loss, loss, (2 * kColumns + 4 + kTokens) * 0x1p-24 * magnitude);
}

// Of zeros that are stored as numbers of the scales' type: each weight has the code whose value is nearest
// before values are rounded, too, and dequantize() gives them as they are rounded.
TEST(Rtn, RoundsAgainstTheZerosAsTheyAreStored) {
  QuantScheme s = rtn_scheme(8, Granularity::kGroup, 32, false, DType::kBF16);
  s.zero_form = ZeroForm::kAddend;
  std::vector<float> weight = random_weight(4 * 64, 3);
  for (float& w : weight) w += 0.03f;  // zeros that BF16 does not hold times a scale
  ThreadPool pool(2);
  const QuantizedMatrix m = round_to_nearest(weight, 4, 64, s, pool);
  std::vector<float> values(weight.size());
  dequantize(m, values);
  bool moved = false;
  for (std::size_t k = 0; k < weight.size(); ++k) {
    const float scale = m.scales[k / 32], minimum = m.minima[k / 32], code = m.codes[k];
    ASSERT_EQ(minimum, stored_float(minimum, DType::kBF16));
    ASSERT_EQ(m.zeros[k / 32], 0);
    ASSERT_EQ(values[k], stored_float(stored_float(code * scale, DType::kBF16) - minimum, DType::kBF16));
    if (code > 0 && code < 255) {
      ASSERT_LE(std::fabs(code * scale - minimum - weight[k]), 0.5001f * scale);
    }
    moved |= std::nearbyintf(minimum / scale) * scale != minimum;
  }
  EXPECT_TRUE(moved);
}

}  // namespace
}  // namespace llmq

// The exponential's promised error, conversions bit for bit, and FP64 sums over rows of odd lengths.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "support/cpu_levels.h"

namespace llmq {
namespace {

using testing::normal_values;
using testing::present_levels;

// The error in units of the exact result's last place.
double error_in_ulp(float got, float x) {
  const double exact = std::exp(static_cast<double>(x));
  int exponent = 0;
  std::frexp(exact, &exponent);
  return (static_cast<double>(got) - exact) / std::ldexp(1.0, exponent - 24);
}

// Every 1009th FP32 number of either sign over the promised range. In units of the last place of a result in
// [0.7, 1), the worst case: the last addition rounds by 1/2; the polynomial (in [-0.3, 0)) by 1/8, and its r,
// twice rounded at up to 0.35, by 2/8: below 1 with what the coefficients lack.
TEST(Exponential, IsWithinOneUnitInTheLastPlaceAndTheSameAtEveryLevel) {
  std::vector<float> x;
  for (std::uint32_t bits = 0; bits < 0x7f800000u; bits += 1009) {
    const float v = float_from_bits(bits);
    if (v < 88.0f) x.push_back(v);
    if (v < 87.3f) x.push_back(-v);
  }
  std::vector<float> first;
  for (const CpuKernels* level : present_levels()) {
    std::vector<float> y(x.size());
    level->exponential(y.data(), x.data(), static_cast<std::int64_t>(x.size()));
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::fabs(error_in_ulp(y[i], x[i])));
    EXPECT_LE(worst, 1.0) << level->name;
    if (first.empty())
      first = y;
    else
      EXPECT_EQ(std::memcmp(first.data(), y.data(), y.size() * sizeof(float)), 0) << level->name;
  }
}

// Roundings average out over many arguments (4096 of them to 0.29 / 64 = 0.005 units in the standard
// deviation) and what remains is the polynomial's own error, which stays below 2^-24 / 20: a coefficient that
// is off by 1e-6 shows where it would hide among the roundings.
TEST(Exponential, HasNoBiasAnywhereInTheReducedRange) {
  constexpr int kBins = 64, kPerBin = 4096;
  std::vector<float> x, y(kBins * kPerBin);
  for (int i = 0; i < kBins * kPerBin; ++i)
    x.push_back(static_cast<float>(0.6931 * ((i + 0.5) / (kBins * kPerBin) - 0.5)));
  for (const CpuKernels* level : present_levels()) {
    level->exponential(y.data(), x.data(), static_cast<std::int64_t>(x.size()));
    for (int bin = 0; bin < kBins; ++bin) {
      double sum = 0;
      for (int i = bin * kPerBin; i < (bin + 1) * kPerBin; ++i)
        sum += error_in_ulp(y[static_cast<std::size_t>(i)], x[static_cast<std::size_t>(i)]);
      EXPECT_LE(std::fabs(sum / kPerBin), 0.05)
          << level->name << " near " << x[static_cast<std::size_t>(bin) * kPerBin];
    }
  }
}

TEST(Exponential, EndsOfTheRange) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {-infinity, -1e30f, -88.0f, 0.0f, 89.0f, infinity, std::nanf("")};
  for (const CpuKernels* level : present_levels()) {
    std::vector<float> y(x.size());
    level->exponential(y.data(), x.data(), static_cast<std::int64_t>(x.size()));
    EXPECT_EQ(std::vector<float>(y.begin(), y.begin() + 6),
              (std::vector<float>{0, 0, 0, 1, infinity, infinity}))
        << level->name;
    EXPECT_TRUE(std::isnan(y[6])) << level->name;
  }
}

// Every 1009th FP32 number of the range (r is exact): the polynomial's 0.92e-7, 2^-24 for the last addition,
// 2^-26 for the one before.
TEST(PowerOfTwo, IsWithinItsPromiseAndTheSameAtEveryLevel) {
  std::vector<float> x = {-0.0f};
  for (std::uint32_t bits = 0; bits < 0x42fc0000u; bits += 1009) {
    x.push_back(-float_from_bits(bits));
    x.push_back(float_from_bits(bits));
  }
  std::vector<float> first;
  for (const CpuKernels* level : present_levels()) {
    std::vector<float> y(x.size());
    level->exponential2(y.data(), x.data(), static_cast<std::int64_t>(x.size()));
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp2(static_cast<double>(x[i]));
      worst = std::max(worst, std::fabs(static_cast<double>(y[i]) - exact) / exact);
    }
    EXPECT_LE(worst, 1.7e-7) << level->name;
    EXPECT_EQ(y[0], 1.0f) << level->name;
    if (first.empty())
      first = y;
    else
      EXPECT_EQ(std::memcmp(first.data(), y.data(), y.size() * sizeof(float)), 0) << level->name;
  }
}

TEST(PowerOfTwo, IsZeroBelowTheNormalNumbersAndKeepsNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {-infinity, -1e30f, -126.01f, -126.0f, std::nanf("")};
  for (const CpuKernels* level : present_levels()) {
    std::vector<float> y(x.size());
    level->exponential2(y.data(), x.data(), static_cast<std::int64_t>(x.size()));
    EXPECT_EQ(std::vector<float>(y.begin(), y.begin() + 4), (std::vector<float>{0, 0, 0, 0x1p-126f}))
        << level->name;
    EXPECT_TRUE(std::isnan(y[4])) << level->name;
  }
}

TEST(Activations, AreTheSameAtEveryLevel) {
  for (const std::int64_t n : {1, 5, 16, 33, 1000}) {
    std::vector<float> x = normal_values(static_cast<std::size_t>(n), 6);
    for (float& v : x) v *= 4;
    for (int act = 0; act < kActivations; ++act) {
      // Whichever `up` multiplies by 1.
      const bool one_more = act == static_cast<int>(Activation::kClampedSwiglu);
      const std::vector<float> ones(x.size(), one_more ? 0.0f : 1.0f);
      for (std::size_t format : {0, 1}) {
        std::vector<unsigned char> first(x.size() * 4), y(x.size() * 4);
        for (const CpuKernels* level : present_levels()) {
          level->activate[act][format](y.data(), x.data(), n);
          if (level == present_levels()[0]) first = y;
          EXPECT_EQ(y, first) << level->name << " " << act << " " << format;
          level->gated[act][format](y.data(), x.data(), ones.data(), n);
          EXPECT_EQ(y, first) << level->name << " " << act << " " << format;
        }
      }
    }
  }
}

TEST(Softcap, IsTheSameAtEveryLevel) {
  for (const std::int64_t n : {1, 5, 16, 33, 1000}) {
    std::vector<float> x = normal_values(static_cast<std::size_t>(n), 6), first;
    for (const CpuKernels* level : present_levels()) {
      std::vector<float> y = x;
      level->softcap(y.data(), 1.25f, n);
      if (level == present_levels()[0]) first = y;
      EXPECT_EQ(y, first) << level->name;
    }
  }
}

TEST(Conversion, RoundsAsTheScalarFunctionDoes) {
  std::vector<float> x = normal_values(1001, 5);
  for (const std::uint32_t bits : {0x3f808000u, 0x3f818000u, 0x3f808001u, 0x00000001u, 0x00018000u,
                                   0x7f7fffffu, 0x7f800001u, 0xffc00000u})
    x.push_back(float_from_bits(bits));
  for (const CpuKernels* level : present_levels()) {
    std::vector<BFloat16> y(x.size());
    level->to_bf16(y.data(), x.data(), static_cast<std::int64_t>(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i)
      EXPECT_EQ(y[i].bits, to_bfloat16(x[i]).bits) << level->name << " " << x[i];
  }
}

// The rule in plain C++ with std::nearbyint: division, ties to even, clamped; every level gives its bits.
TEST(Rounding, FollowsTheRuleAtEveryLevel) {
  for (const std::int64_t n : {1, 5, 16, 31, 64, 128}) {
    std::vector<float> w = normal_values(static_cast<std::size_t>(n), 11);
    std::vector<float> s = normal_values(static_cast<std::size_t>(n), 12), inverse(w.size());
    if (n > 4) w[1] = 0.25f * 2.5f, w[2] = 0.25f * 3.5f, w[3] = 40.0f, w[4] = -40.0f;  // ties and both ends
    for (std::size_t i = 0; i < s.size(); ++i) {
      s[i] = 0.5f + std::fabs(s[i]);
      inverse[i] = 1.0f / s[i];
    }
    const CodeGrid grid{0.25f, 7, 15};
    const auto steps = [&](float v) {
      return std::clamp(std::nearbyint(v / grid.scale) + grid.zero, 0.0f, grid.top) - grid.zero;
    };
    for (const CpuKernels* level : present_levels()) {
      const LeastMost range = level->least_most(w.data(), n);
      EXPECT_EQ(range.least, std::min(0.0f, *std::min_element(w.begin(), w.end()))) << level->name;
      EXPECT_EQ(range.most, std::max(0.0f, *std::max_element(w.begin(), w.end()))) << level->name;
      std::vector<float> plain(w.size()), scaled(w.size()), folded(w.size());
      level->round_difference(plain.data(), w.data(), n, grid);
      level->scale_channels(scaled.data(), w.data(), s.data(), n);
      level->scaled_difference(folded.data(), scaled.data(), inverse.data(), w.data(), n, grid);
      for (std::size_t i = 0; i < w.size(); ++i) {
        EXPECT_EQ(plain[i], steps(w[i]) * grid.scale - w[i]) << level->name << " " << n << " " << i;
        EXPECT_EQ(scaled[i], w[i] * s[i]) << level->name;
        EXPECT_EQ(folded[i], steps(w[i] * s[i]) * grid.scale * inverse[i] - w[i]) << level->name << " " << i;
      }
    }
  }
}

// FP64 sums of n positive terms, each exponential within a few units: n + 8 roundings of 2^-53, as a generous
// bound on either order.
TEST(Score, SumsAreFp64AndIndicesTheLowest) {
  for (const std::int64_t n : {1, 2, 7, 16, 33, 1000}) {
    auto x = normal_values(static_cast<std::size_t>(n), 7);
    if (n > 6) x[3] = x[6] = 9.0f;
    for (const CpuKernels* level : present_levels()) {
      std::int64_t argmax = -1;
      const SoftmaxSum got = level->softmax_sum(x.data(), n, &argmax);
      const auto best = std::max_element(x.begin(), x.end());
      double sum = 0;
      for (const float v : x) sum += std::exp(static_cast<double>(v) - static_cast<double>(*best));
      EXPECT_EQ(got.max, *best) << level->name;
      EXPECT_EQ(argmax, best - x.begin()) << level->name;
      EXPECT_NEAR(got.sum, sum, sum * static_cast<double>(n + 8) * 0x1p-53) << level->name << " " << n;
      const DivergenceSum self = level->divergence(x.data(), x.data(), n);
      EXPECT_EQ(self.weighted, 0.0) << level->name;
      EXPECT_EQ(self.p.sum, self.q.sum) << level->name;
    }
  }
}

}  // namespace
}  // namespace llmq

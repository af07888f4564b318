// Each bound holds for what it describes and catches an error just beyond it, so that no test passes for want
// of sharpness.
#include "tests/support/tolerance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/half.h"

namespace llmq::testing {
namespace {

struct Dot {
  std::vector<float> x, w;
  double exact = 0, absolute = 0;
};

Dot random_dot(int n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Dot dot;
  for (int i = 0; i < n; ++i) {
    dot.x.push_back(normal(random));
    dot.w.push_back(normal(random));
    const double product = static_cast<double>(dot.x.back()) * dot.w.back();
    dot.exact += product;
    dot.absolute += std::fabs(product);
  }
  return dot;
}

TEST(Tolerance, Fp32DotHoldsInTwoOrdersAndCatchesALostTerm) {
  for (const int n : {1, 3, 64, 1000}) {
    const Dot dot = random_dot(n, static_cast<unsigned>(n));
    float forward = 0, backward = 0;
    for (int i = 0; i < n; ++i)
      forward += dot.x[static_cast<std::size_t>(i)] * dot.w[static_cast<std::size_t>(i)];
    for (int i = n; i-- > 0;)
      backward += dot.x[static_cast<std::size_t>(i)] * dot.w[static_cast<std::size_t>(i)];
    const double bound = fp32_dot_bound(n, dot.absolute);
    EXPECT_LE(std::fabs(forward - dot.exact), bound);
    EXPECT_LE(std::fabs(backward - dot.exact), bound);
    const double average_term = dot.absolute / n;
    EXPECT_GT(average_term, bound) << "a lost term of average size would pass at n = " << n;
  }
}

TEST(Tolerance, Bf16DotHoldsAndCatchesAScaleOffByOneStep) {
  const Dot dot = random_dot(512, 7);
  double rounded = 0;
  for (std::size_t i = 0; i < dot.x.size(); ++i)
    rounded += static_cast<double>(to_float(to_bfloat16(dot.x[i]))) * to_float(to_bfloat16(dot.w[i]));
  EXPECT_LE(std::fabs(rounded - dot.exact), bf16_dot_bound(512, dot.absolute));
  EXPECT_GT(0.02 * dot.absolute, bf16_dot_bound(512, dot.absolute));
}

TEST(Tolerance, RoundingBoundsAreReachedAndNotExceeded) {
  double worst16 = 0, worst_brain = 0;
  for (std::uint32_t bits = 0x3f800000; bits < 0x40000000; bits += 97) {  // [1, 2)
    const float value = float_from_bits(bits);
    worst_brain =
        std::max(worst_brain, std::fabs(static_cast<double>(to_float(to_bfloat16(value))) - value) / value);
    worst16 = std::max(worst16, std::fabs(static_cast<double>(to_float(to_float16(value))) - value) / value);
  }
  EXPECT_LE(worst_brain, kBf16Roundoff);
  EXPECT_GT(worst_brain, 0.9 * kBf16Roundoff);
  EXPECT_LE(worst16, kFp16Roundoff);
  EXPECT_GT(worst16, 0.9 * kFp16Roundoff);
}

TEST(Tolerance, RmsNormHoldsAndCatchesAMissingEpsilon) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(576);
  for (float& value : x) value = 0.1f * normal(random);
  float sum = 0;
  double exact_sum = 0;
  for (const float value : x) {
    sum += value * value;
    exact_sum += static_cast<double>(value) * value;
  }
  const float got = x[5] / std::sqrt(sum / 576.f + 1e-5f) * 1.5f;
  const double want = x[5] / std::sqrt(exact_sum / 576 + 1e-5f) * 1.5;
  EXPECT_LE(std::fabs(got - want), fp32_rms_norm_bound(576, want));
  EXPECT_GT(std::fabs(x[5] / std::sqrt(exact_sum / 576) * 1.5 - want), fp32_rms_norm_bound(576, want));
}

TEST(Tolerance, LayerNormHoldsAndCatchesAForgottenMean) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> x(576);
  for (float& value : x) value = 3 + normal(random);
  const auto normed = [&]<class Number>(Number, Number about) {
    Number sum = 0, squares = 0;
    for (const float value : x) sum += value;
    const Number mean = sum / 576;
    for (const float value : x) squares += (value - mean) * (value - mean);
    return (x[5] - mean + about) / std::sqrt(squares / 576 + Number{1e-5f});
  };
  const double exact = normed(0.0, 0.0), want = exact * 1.5 + 0.25;
  const double bound = fp32_layer_norm_bound(576, 3, 1, exact, 1.5, 0.25);
  EXPECT_LE(std::fabs(normed(0.0f, 0.0f) * 1.5f + 0.25f - want), bound);
  EXPECT_GT(std::fabs(normed(0.0, 1e-3) * 1.5 + 0.25 - want), bound);
  EXPECT_GT(std::fabs(exact * 1.5 - want), bound);
}

TEST(Tolerance, SoftmaxMeanHoldsAndCatchesALostPosition) {
  const Dot dot = random_dot(100, 11);
  const auto mean = [&](double shift, std::size_t from) {
    double weights = 0, sum = 0;
    for (std::size_t i = from; i < dot.x.size(); ++i) {
      const double weight = std::exp(dot.x[i] + (i % 2 ? shift : -shift));
      weights += weight;
      sum += weight * std::fabs(dot.w[i]);
    }
    return sum / weights;
  };
  const double exact = mean(0, 0), bound = softmax_mean_bound(100, 1e-6, 0, exact);
  EXPECT_LE(std::fabs(mean(1e-6, 0) - exact), bound);
  EXPECT_GT(std::fabs(mean(0, 1) - exact), bound);
}

TEST(Tolerance, OutsideSeesSignsNanAndSizes) {
  const std::vector<double> want = {1, -2}, bound = {0.5, 0.5};
  EXPECT_EQ(outside(std::vector<float>{1.5f, -2.f}, want, bound), "");
  EXPECT_NE(outside(std::vector<float>{1.f, 2.f}, want, bound), "");
  EXPECT_NE(outside(std::vector<float>{NAN, -2.f}, want, bound), "");
  EXPECT_NE(outside(std::vector<float>{1.f}, want, bound), "");
}

}  // namespace
}  // namespace llmq::testing

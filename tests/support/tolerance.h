// Every bound a numeric test may use, with the reason for it. Tests name a bound; they hold no literals of
// their own. tests/unit/base/tolerance_test.cpp shows that each catches a planted error.
//
// Notation: u = 2^-24 is FP32's unit roundoff, v = 2^-8 BF16's (8 significant bits), gamma(n) = n u / (1 - n
// u). Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., lemma 3.1 and section 3.1.
// Overflow and underflow are left out: tests keep away from both ends of the range.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace llmq::testing {

inline constexpr double kFp32Roundoff = 0x1p-24;
inline constexpr double kBf16Roundoff = 0x1p-8;
inline constexpr double kFp16Roundoff = 0x1p-11;

inline double gamma(double n, double roundoff = kFp32Roundoff) { return n * roundoff / (1 - n * roundoff); }

// A sum of n products, each product and each addition rounded to FP32, added in any order, blocked or not,
// with FMA or without: |error| <= gamma(n) * sum |x_k w_k|. One more rounding for what is done with the
// result (a bias added, a store).
inline double fp32_dot_bound(std::int64_t n, double absolute_sum) {
  return gamma(static_cast<double>(n) + 1) * absolute_sum;
}

// The same where x and w were rounded to BF16 first and the reference was not: each product is off by (1+v)^2
// - 1 relative.
inline double bf16_dot_bound(std::int64_t n, double absolute_sum) {
  const double rounded = (1 + kBf16Roundoff) * (1 + kBf16Roundoff);
  return (rounded - 1) * absolute_sum + fp32_dot_bound(n, rounded * absolute_sum);
}

// A result rounded once, on its way to FP32 or BF16.
inline double fp32_rounding_bound(double value) { return kFp32Roundoff * std::fabs(value); }
inline double bf16_rounding_bound(double value) { return kBf16Roundoff * std::fabs(value); }

// n FP32 operations in a row, each on the result of the one before: (1+u)^n - 1 <= gamma(n).
inline double fp32_chain_bound(int n, double value) { return gamma(n) * std::fabs(value); }

// x / sqrt(mean(x^2) + eps) * gain over n elements in FP32: the mean of squares is a sum of positive terms,
// off by gamma(n + 2) relative (n sums, the division, eps); a square root halves it; then a root, a division
// and a product round once each (with a reciprocal root of 1 ulp, two roundings more). Relative to the
// result.
inline double fp32_rms_norm_bound(std::int64_t n, double value) {
  return gamma((static_cast<double>(n) + 2) / 2 + 5) * std::fabs(value);
}

// (x - mean) / s * gain + bias, s = sqrt(variance + eps), over n elements in FP32, with `mean_magnitude` =
// mean |x| and `normed` = (x - mean) / s. The mean is off by gamma(n + 1) mean |x| (n sums, the division), x
// - mean by that much and a rounding; so is, by Minkowski's inequality, the root of the mean of their
// squares, which adds what it adds in rms_norm. The last addition rounds the sum of both terms.
inline double fp32_layer_norm_bound(std::int64_t n, double mean_magnitude, double s, double normed,
                                    double gain, double bias) {
  const double shift = gamma(static_cast<double>(n) + 1) * mean_magnitude / s;
  const double relative = shift + gamma((static_cast<double>(n) + 2) / 2 + 6);
  return 1.01 * std::fabs(gain) * (shift + std::fabs(normed) * relative) +  // 1.01: products of the errors
         gamma(2) * (std::fabs(normed * gain) + std::fabs(bias));
}

// A weighted mean sum p_k v_k with p = softmax(s), scores exact up to `score_error` (absolute): each exp is
// off by e^(2 score_error) - 1 relative (its own error and the maximum's), plus `exp_error` relative for the
// exp used; numerator and denominator sum n terms each. absolute_mean = sum p_k |v_k|.
inline double softmax_mean_bound(std::int64_t n, double score_error, double exp_error, double absolute_mean) {
  const double weight = std::expm1(2 * score_error) + exp_error;
  return (2 * weight + 2 * gamma(static_cast<double>(n) + 2)) * 1.01 *
         absolute_mean;  // 1.01: products of the errors, each below 1e-3
}

// Empty when every |got - want| <= bound, else where and by how much. Differences are absolute: signs, zeros
// and NaN need no special case (a NaN is never within a bound).
inline std::string outside(std::span<const float> got, std::span<const double> want,
                           std::span<const double> bound) {
  if (got.size() != want.size() || bound.size() != want.size())
    return "sizes differ: got " + std::to_string(got.size()) + ", want " + std::to_string(want.size()) +
           ", bounds " + std::to_string(bound.size());
  for (std::size_t i = 0; i < want.size(); ++i)
    if (!(std::fabs(got[i] - want[i]) <= bound[i]))
      return "[" + std::to_string(i) + "] got " + std::to_string(got[i]) + " want " +
             std::to_string(want[i]) + " bound " + std::to_string(bound[i]);
  return {};
}

}  // namespace llmq::testing

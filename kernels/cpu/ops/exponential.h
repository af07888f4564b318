// exp(x) for vectors: x = n ln 2 + r, |r| <= ln 2 / 2, exp(x) = 2^n P(r); 2^x: x = n + r, |r| <= 1/2. The
// same operations at every level.
//
// FP32: Cephes' degree-5 minimax polynomial for (exp(r) - 1 - r) / r^2; at most 1 ulp where the result is
// normal and below 2^127.5 (tests/kernels/cpu/rows_test), 0 below -87.33, infinity from 88.38 on.
// FP64: Taylor to r^13, remainder 4e-18; 0 below -708; for arguments <= 0 only. NaN stays NaN.
#pragma once
#include "kernels/cpu/ops/unroll.h"

namespace llmq {

// Where exp_f32 gives 0; 2^-126 is at -87.34.
constexpr float kExpLowest = -87.33f;

// `limited` in [kExpLowest, 89] as P(r) and n; adding the magic number leaves n in the low bits of `shifted`.
template <class V>
struct ExpParts {
  typename V::F p, n, shifted;

  explicit LLMQ_INLINE ExpParts(typename V::F limited) {
    const auto magic = V::set(0x1.8p23f);
    shifted = V::fma(limited, V::set(0x1.715476p0f), magic);
    n = V::sub(shifted, magic);
    auto r = V::fma(n, V::set(-0.693359375f), limited);
    r = V::fma(n, V::set(2.12194440e-4f), r);
    p = V::set(1.9875691500e-4f);
    p = V::fma(p, r, V::set(1.3981999507e-3f));
    p = V::fma(p, r, V::set(8.3334519073e-3f));
    p = V::fma(p, r, V::set(4.1665795894e-2f));
    p = V::fma(p, r, V::set(1.6666665459e-1f));
    p = V::fma(p, r, V::set(5.0000001201e-1f));
    p = V::add(V::fma(p, V::mul(r, r), r), V::set(1.0f));
  }
};

template <class V>
LLMQ_INLINE typename V::F exp_f32(typename V::F x) {
  const auto lowest = V::set(kExpLowest);
  // The second operand is kept where one is NaN.
  const ExpParts<V> e(V::max(lowest, V::min(V::set(89.0f), x)));
  return V::zero_where_less(x, lowest, V::mul(e.p, V::power_of_two(e.shifted)));
}

// 2^x for x <= 126 (and NaN), for attention: 8 operations less than exp_f32. P is a minimax polynomial of
// degree 5, P(0) = 1; its error and all roundings stay below 1.7e-7 of the result. 0 below -126: 2^n is a
// normal number, and a processor that scales by it in one instruction may.
constexpr float kExp2Lowest = -126.0f;
constexpr float kLog2E = 0x1.715476p0f;

template <class V>
LLMQ_INLINE typename V::F exp2_f32(typename V::F x) {
  const auto lowest = V::set(kExp2Lowest), magic = V::set(0x1.8p23f);
  const auto limited = V::max(lowest, x);
  const auto shifted = V::add(limited, magic);  // n in its low bits
  const auto n = V::sub(shifted, magic);
  const auto r = V::sub(limited, n);
  auto p = V::set(0x1.5bba14p-10f);
  p = V::fma(p, r, V::set(0x1.3cea88p-7f));
  p = V::fma(p, r, V::set(0x1.c6b752p-5f));
  p = V::fma(p, r, V::set(0x1.ebf9bcp-3f));
  p = V::fma(p, r, V::set(0x1.62e42ap-1f));
  p = V::fma(p, r, V::set(1.0f));
  return V::scale_where_not_less(x, lowest, p, n, shifted);
}

// tanh(x): 1 - 2 / (exp(2x) + 1) from |x| = 5/8 on, below it Cephes' polynomial, x + x z P(z) with z = x^2,
// as the difference would cancel. Within 3e-7 of the result.
template <class V>
LLMQ_INLINE typename V::F tanh_f32(typename V::F x) {
  const auto one = V::set(1.0f), limit = V::set(0.625f);
  const auto far = V::sub(one, V::div(V::set(2.0f), V::add(exp_f32<V>(V::add(x, x)), one)));
  const auto z = V::mul(x, x);
  auto p = V::set(-5.70498872745e-3f);
  p = V::fma(p, z, V::set(2.06390887954e-2f));
  p = V::fma(p, z, V::set(-5.37397155531e-2f));
  p = V::fma(p, z, V::set(1.33314422036e-1f));
  p = V::fma(p, z, V::set(-3.33332819422e-1f));
  const auto size = V::max(V::sub(V::set(0.0f), x), x);
  const auto near = V::fma(V::mul(p, z), x, x);
  // One of the two is 0: the second from the limit on, which is the next number.
  return V::add(V::zero_where_less(size, limit, far), V::zero_where_less(V::set(0x1.3ffffep-1f), size, near));
}

template <class V>
LLMQ_INLINE typename V::D exp_f64(typename V::D x) {
  constexpr double kInverseFactorial[] = {
      1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
      1.0 / 720,        1.0 / 120,       1.0 / 24,       1.0 / 6,       1.0 / 2,      1.0,         1.0};
  const auto lowest = V::setd(-708.0);
  const auto limited = V::maxd(lowest, x);
  const auto magic = V::setd(0x1.8p52);
  const auto shifted = V::fmad(limited, V::setd(0x1.71547652b82fep0), magic);
  const auto n = V::subd(shifted, magic);
  auto r = V::fmad(n, V::setd(-0x1.62e42fefa39efp-1), limited);
  r = V::fmad(n, V::setd(-0x1.abc9e3b39803fp-56), r);
  auto p = V::setd(kInverseFactorial[0]);
  unroll<14, 1>(
      [&](auto i) LLMQ_LAMBDA_INLINE { p = V::fmad(p, r, V::setd(kInverseFactorial[decltype(i)::value])); });
  return V::zero_where_lessd(x, lowest, V::muld(p, V::power_of_twod(shifted)));
}

}  // namespace llmq

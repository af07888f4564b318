// Every pattern of both half types, and every rounding edge between neighbours.
#include "base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace llmq {
namespace {

// The definitions, in double: exact for every finite pattern.
double fp16_value(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31u), fraction = static_cast<int>(bits & 1023u);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000u ? -magnitude : magnitude;
}
double bf16_value(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 7 & 255u), fraction = static_cast<int>(bits & 127u);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -133) : std::ldexp(128 + fraction, exponent - 134);
  return bits & 0x8000u ? -magnitude : magnitude;
}

TEST(Half, EveryFloat16PatternReadsAsDefined) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = to_float(Float16{static_cast<std::uint16_t>(bits)});
    if ((bits & 0x7c00u) != 0x7c00u) {
      ASSERT_EQ(static_cast<double>(value), fp16_value(bits)) << bits;
    } else if (bits & 0x3ffu) {
      ASSERT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_TRUE(std::isinf(value)) << bits;
    }
    ASSERT_EQ(std::signbit(value), (bits & 0x8000u) != 0) << bits;
  }
}

TEST(Half, EveryBFloat16PatternReadsAsDefined) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = to_float(BFloat16{static_cast<std::uint16_t>(bits)});
    if ((bits & 0x7f80u) != 0x7f80u) {
      ASSERT_EQ(static_cast<double>(value), bf16_value(bits)) << bits;
    } else {
      ASSERT_EQ(std::isnan(value), (bits & 0x7fu) != 0) << bits;
    }
  }
}

TEST(Half, EveryPatternComesBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Float16 half{static_cast<std::uint16_t>(bits)};
    const BFloat16 brain{static_cast<std::uint16_t>(bits)};
    if (std::isnan(to_float(half))) {
      ASSERT_TRUE(std::isnan(to_float(to_float16(to_float(half)))));
    } else {
      ASSERT_EQ(to_float16(to_float(half)).bits, bits);
    }
    if (std::isnan(to_float(brain))) {
      ASSERT_TRUE(std::isnan(to_float(to_bfloat16(to_float(brain)))));
    } else {
      ASSERT_EQ(to_bfloat16(to_float(brain)).bits, bits);
    }
  }
}

// Between each pattern and the next: below the middle rounds down, above it up, the middle to the even
// pattern.
template <typename Half, typename Round>
void check_middles(std::uint32_t largest, Round round) {
  for (std::uint32_t bits = 0; bits < largest; ++bits) {
    const double low = to_float(Half{static_cast<std::uint16_t>(bits)});
    const double high = to_float(Half{static_cast<std::uint16_t>(bits + 1)});
    const auto middle = static_cast<float>((low + high) / 2);  // exact: one bit more than a half has
    ASSERT_EQ(static_cast<double>(middle), (low + high) / 2);
    const std::uint32_t even = bits + (bits & 1u);
    for (const std::uint32_t sign : {0u, 0x8000u}) {
      const float s = sign ? -1.f : 1.f;
      ASSERT_EQ(round(s * middle).bits, sign | even) << bits;
      ASSERT_EQ(round(s * std::nextafterf(middle, 0.f)).bits, sign | bits) << bits;
      ASSERT_EQ(round(s * std::nextafterf(middle, HUGE_VALF)).bits, sign | (bits + 1)) << bits;
    }
  }
}

TEST(Half, EveryMiddleOfTwoFloat16RoundsToEven) {
  check_middles<Float16>(0x7bff, [](float v) { return to_float16(v); });
}
TEST(Half, EveryMiddleOfTwoBFloat16RoundsToEven) {
  check_middles<BFloat16>(0x7f7f, [](float v) { return to_bfloat16(v); });
}

TEST(Half, OverflowBecomesInfinityAtTheMiddleBeyondTheLargest) {
  EXPECT_EQ(to_float16(65519.996f).bits, 0x7bff);
  EXPECT_EQ(to_float16(65520.f).bits, 0x7c00);
  EXPECT_EQ(to_float16(-65520.f).bits, 0xfc00);
  EXPECT_EQ(to_float16(std::numeric_limits<float>::max()).bits, 0x7c00);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(to_bfloat16(float_from_bits(0x7f7f7fffu)).bits, 0x7f7f);
  EXPECT_EQ(to_bfloat16(float_from_bits(0x7f7f8000u)).bits, 0x7f80);
}

TEST(Half, NanStaysNanWhateverItsPayload) {
  for (const std::uint32_t bits : {0x7f800001u, 0x7fbfffffu, 0x7fc00000u, 0xff800001u, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(to_float(to_float16(float_from_bits(bits)))));
    EXPECT_TRUE(std::isnan(to_float(to_bfloat16(float_from_bits(bits)))));
  }
}

// Every code is its own nearest, and of two neighbours the even one is that of what lies half way, whatever
// the sign; `top` is the code of the largest number.
template <class Float>
void expect_nearest(std::uint8_t top) {
  const auto value_of = [](int bits) { return to_float(Float{static_cast<std::uint8_t>(bits)}); };
  for (int bits = 0; bits <= top; ++bits)
    for (const int sign : {0, 0x80}) EXPECT_EQ(Float::nearest(value_of(bits | sign)).bits, bits | sign);
  for (int bits = 0; bits < top; ++bits) {
    const float middle = (value_of(bits) + value_of(bits + 1)) / 2;
    EXPECT_EQ(Float::nearest(middle).bits, bits % 2 == 0 ? bits : bits + 1) << bits;
    EXPECT_EQ(Float::nearest(std::nextafter(middle, 0.f)).bits, bits);
    EXPECT_EQ(Float::nearest(-std::nextafter(middle, 1e9f)).bits, (bits + 1) | 0x80);
  }
  for (const float beyond : {value_of(top) * 1.2f, 1e30f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(Float::nearest(beyond).bits, top);
    EXPECT_EQ(Float::nearest(-beyond).bits, top | 0x80);
  }
  for (const float nothing : {std::nanf(""), -std::nanf(""), float_from_bits(0x7f800001u)})
    EXPECT_TRUE(std::isnan(to_float(Float::nearest(nothing))));
}

TEST(Float8, EveryCodeRoundTripsAndTiesGoToEven) {
  EXPECT_EQ(to_float(Float8{0x7e}), 448.f);
  EXPECT_EQ(to_float(Float8{0x01}), 0x1p-9f);
  EXPECT_EQ(to_float(Float8{0x38}), 1.f);
  EXPECT_EQ(to_float(Float8{0xb9}), -1.125f);
  for (const std::uint8_t bits : {0x7f, 0xff}) EXPECT_TRUE(std::isnan(to_float(Float8{bits})));
  expect_nearest<Float8>(0x7e);
}

TEST(Float8, E5M2IsRoundedOnceAndEndsAtItsLargest) {
  EXPECT_EQ(to_float(Float8E5M2{0x7b}), 57344.f);
  EXPECT_EQ(to_float(Float8E5M2{0x01}), 0x1p-16f);
  EXPECT_EQ(to_float(Float8E5M2{0x3c}), 1.f);
  EXPECT_EQ(to_float(Float8E5M2{0xbd}), -1.25f);
  EXPECT_TRUE(std::isinf(to_float(Float8E5M2{0x7c})));
  for (const std::uint8_t bits : {0x7d, 0x7e, 0x7f, 0xff})
    EXPECT_TRUE(std::isnan(to_float(Float8E5M2{bits})));
  expect_nearest<Float8E5M2>(0x7b);
  const float above = 1.125f + 0x1p-20f;  // an FP16 between would be the tie, which goes to 1
  EXPECT_EQ(to_float(Float8E5M2::nearest(above)), 1.25f);
}

}  // namespace
}  // namespace llmq

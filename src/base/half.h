// BF16, FP16 and FP8 (E4M3, E5M2) as bits, and their exact conversions. Round to nearest, ties to even; NaN
// stays NaN (quiet).
//
// BF16 is the upper half of a binary32. FP16 has 5 exponent and 10 fraction bits, with subnormals.
// Always-inlined and free of the standard library's templates, so that ISA-specific objects may include it.
#pragma once
#include <cstdint>

namespace llmq {

#define LLMQ_INLINE inline __attribute__((always_inline))

struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};
// OCP 8-bit floating point: a sign, an exponent biased by kBias, kFraction fraction bits; subnormals. kTop is
// the code of the largest number.
template <int kFraction, int kBias, std::uint8_t kTop>
struct SmallFloat {
  std::uint8_t bits;
  // Beyond the largest number, infinity too, is the largest, as quantizers clamp; NaN becomes 0x7f or 0xff.
  static constexpr SmallFloat nearest(float value);
};
// E4M3 without infinities ("fn"): kFloat8Top the largest, 0x7f and 0xff NaN, subnormals in units of 2^-9.
using Float8 = SmallFloat<3, 7, 0x7e>;
inline constexpr float kFloat8Top = 448.0f;
// The upper half of an FP16: 57344 the largest, 0x7c infinity, subnormals in units of 2^-16.
using Float8E5M2 = SmallFloat<2, 15, 0x7b>;

LLMQ_INLINE constexpr float float_from_bits(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }
LLMQ_INLINE constexpr std::uint32_t bits_from_float(float value) {
  return __builtin_bit_cast(std::uint32_t, value);
}

LLMQ_INLINE constexpr float to_float(BFloat16 h) {
  return float_from_bits(static_cast<std::uint32_t>(h.bits) << 16);
}

LLMQ_INLINE constexpr BFloat16 to_bfloat16(float value) {
  const std::uint32_t x = bits_from_float(value);
  if ((x & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((x >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((x + 0x7fffu + ((x >> 16) & 1u)) >> 16)};
}

LLMQ_INLINE constexpr float to_float(Float16 h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = h.bits & 0x7fffu;
  if (magnitude >= 0x7c00u)  // infinity and NaN: widen the exponent
    return float_from_bits(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  // 2^112 rebiases the exponent; the product is exact, subnormals included.
  return float_from_bits(sign | bits_from_float(float_from_bits(magnitude << 13) * 0x1p112f));
}

LLMQ_INLINE constexpr Float16 to_float16(float value) {
  const std::uint32_t x = bits_from_float(value);
  const std::uint16_t sign = static_cast<std::uint16_t>((x >> 16) & 0x8000u);
  const std::uint32_t magnitude = x & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // rounds to infinity
  if (magnitude <
      0x38800000u) {  // subnormal: adding 0.5 leaves units of 2^-24 in the low fraction bits, rounded to even
    const std::uint32_t rounded = bits_from_float(float_from_bits(magnitude) + 0.5f) - bits_from_float(0.5f);
    return {static_cast<std::uint16_t>(sign | rounded)};
  }
  const std::uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<std::uint16_t>(sign | (rounded >> 13))};
}

LLMQ_INLINE constexpr float to_float(Float8 f) {
  const std::uint32_t sign = (f.bits & 0x80u) << 24, magnitude = f.bits & 0x7fu;
  if (magnitude == 0x7f) return float_from_bits(sign | 0x7fc00000u);
  // As FP16 fields the exponent is biased by 15 instead of 7: 2^8 too small, and the product is exact.
  const float value = to_float(Float16{static_cast<std::uint16_t>(magnitude << 7)}) * 0x1p8f;
  return float_from_bits(sign | bits_from_float(value));
}

LLMQ_INLINE constexpr float to_float(Float8E5M2 f) {
  return to_float(Float16{static_cast<std::uint16_t>(f.bits << 8)});
}

template <int kFraction, int kBias, std::uint8_t kTop>
LLMQ_INLINE constexpr SmallFloat<kFraction, kBias, kTop> SmallFloat<kFraction, kBias, kTop>::nearest(
    float value) {
  constexpr int kShift = 23 - kFraction;  // of fraction bits that are rounded away
  constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << 23,
                          kLeastNormal = kRebias + (1u << 23), kHalf = 1u << (kShift - 1);
  const std::uint32_t x = bits_from_float(value);
  const std::uint32_t sign = (x >> 24) & 0x80u, magnitude = x & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint8_t>(sign | 0x7fu)};
  if (magnitude >= (std::uint32_t{kTop} << kShift) + kRebias) return {static_cast<std::uint8_t>(sign | kTop)};
  if (magnitude < kLeastNormal) {  // adding 2^23 of their units leaves these in the low bits, rounded to even
    constexpr std::uint32_t kUnits = static_cast<std::uint32_t>(127 + 24 - kBias - kFraction) << 23;
    return {static_cast<std::uint8_t>(
        sign | (bits_from_float(float_from_bits(magnitude) + float_from_bits(kUnits)) - kUnits))};
  }
  const std::uint32_t rounded = magnitude - kRebias + (kHalf - 1) + ((magnitude >> kShift) & 1u);
  return {static_cast<std::uint8_t>(sign | (rounded >> kShift))};
}

LLMQ_INLINE constexpr Float8 to_float8(float value) { return Float8::nearest(value); }

}  // namespace llmq

// Numbers in groups as floats of 4 or 8 bits: number = code * scale, with a scale of its own for each group.
//
//   two levels   level = E4M3 nearest to largest / 6 * global, or largest / 6 / global where scales are
//                multiplied by it; 0.125 in place of 0; scale = level / global, or level * global
//   exponents    level = scale = 2^(byte - 127), byte = e - floor(log2 of the largest code) of largest =
//                m 2^(e - 127), with e one more from m = 1.75 on, within 0 .. 254
//   code         the one nearest to number / scale, ties to the even code, at most the largest
//
// code * level has at most 6 significant bits: BF16 holds it exactly. These are compressed-tensors' rules
// (tensor/block_scales.h names the source). Free of the standard library's templates (base/half.h).
#pragma once
#include "base/half.h"

namespace llmq {

LLMQ_INLINE constexpr float magnitude_of(float value) {
  return float_from_bits(bits_from_float(value) & 0x7fffffffu);
}

// The magnitude of the E2M1 code nearest to one that is divided by its scale, without branches: loops over
// neighbours become vectors. Steps of 0.5 below 2, of 1 below 4, of 2 from there on, 6 at most. What is added
// and taken away again rounds to integers, ties to even, which are the even codes (signed_e2m1_code()).
LLMQ_INLINE constexpr float e2m1_magnitude(float size) {
  constexpr float kIntegers = 0x1.8p23f, kTop = 6;
  const float step = size < 2 ? 0.5f : size < 4 ? 1.0f : 2.0f;
  const float least = size < 8 ? size : 8.0f;
  const float value = ((least / step + kIntegers) - kIntegers) * step;
  return value > kTop ? kTop : value;
}

// A scale before it is divided by the global one, as E4M3; it is not negative.
LLMQ_INLINE constexpr Float8 nvfp4_level(float scale_times_global) {
  constexpr Float8 kLeast = {0x20};  // 0.125
  const Float8 level = to_float8(scale_times_global);
  return level.bits == 0 ? kLeast : level;
}

// `top`: floor(log2 of the largest code).
LLMQ_INLINE constexpr std::uint32_t mx_level_byte(float largest, int top) {
  const int byte = static_cast<int>((bits_from_float(largest) + (1u << 21)) >> 23) - top;
  return static_cast<std::uint32_t>(byte < 0 ? 0 : byte > 254 ? 254 : byte);
}

LLMQ_INLINE constexpr float power_of_two_at(std::uint32_t byte) {  // below 255
  return float_from_bits(byte == 0 ? 1u << 22 : byte << 23);
}

// The number of a code of E2M1: its bits are put where FP32 has its own, which is 2^-126 of it.
LLMQ_INLINE constexpr float e2m1_number(std::uint32_t code) {
  return float_from_bits(bits_from_float(float_from_bits((code & 7) << 22) * 0x1p126f) | (code & 8) << 28);
}

// E4M3's bits where FP32 has its own are 2^-120 of the number.
inline constexpr float kLevelBits = 0x1p120f;

// The other way, of a number that is divided by its scale: the code nearest to it, as e2m1_magnitude().
LLMQ_INLINE constexpr std::uint32_t nearest_e2m1(float steps) {
  return bits_from_float(e2m1_magnitude(magnitude_of(steps)) * 0x1p-126f) >> 22 |
         (bits_from_float(steps) >> 31) << 3;
}

// The scale that a byte stands for: the number with the bits of `byte << shift`, at least those of `least`,
// times `unit`. So an E4M3 number, and an exponent, whose 0 is no normal number of FP32 (power_of_two_at()).
struct ScaleOfByte {
  int shift = 0;
  std::uint32_t least = 0;
  float unit = 1;
  LLMQ_INLINE constexpr float operator()(std::uint32_t byte) const {
    const std::uint32_t bits = byte << shift;
    return float_from_bits(bits > least ? bits : least) * unit;
  }
};
LLMQ_INLINE constexpr ScaleOfByte scale_of_level(float factor) { return {20, 0, factor * kLevelBits}; }
LLMQ_INLINE constexpr ScaleOfByte scale_of_exponent() { return {23, 1u << 22, 1}; }

// How inputs of linears become such floats as the model runs (device/low_precision.h).
struct InputGroups {
  int size = 0;  // columns of a group; 0: inputs are no floats in groups
  bool float8 = false, two_levels = false;
  bool multiplies = false;  // what the global scale does
  float global = 1;
  static constexpr int kMostInGroup = 32;
  bool operator==(const InputGroups&) const = default;
};

// What code * level is multiplied by to be near the number again.
LLMQ_INLINE constexpr float global_factor(const InputGroups& how) {
  return !how.two_levels ? 1.0f : how.multiplies ? how.global : 1 / how.global;
}

// What the inputs of one group share: what they are divided by, and the level that multiplies their codes, as
// a number and as the byte that is stored. Of no number, NaN and its byte, where an input is not finite.
struct InputLevel {
  float scale = 1, level = 1;
  std::uint32_t byte = 0;
};

LLMQ_INLINE constexpr InputLevel input_level(const InputGroups& how, const float* values, int count) {
  float largest = 0;
  bool finite = true;
  for (int k = 0; k < count; ++k) {
    const float size = magnitude_of(values[k]);
    finite = finite && bits_from_float(size) < 0x7f800000u;
    largest = size > largest ? size : largest;
  }
  InputLevel shared;
  if (how.two_levels) {
    const float plain = largest / 6.0f;
    const Float8 level = nvfp4_level(how.multiplies ? plain / how.global : plain * how.global);
    shared.byte = level.bits;
    shared.level = to_float(level);
    shared.scale = how.multiplies ? shared.level * how.global : shared.level / how.global;
  } else {
    shared.byte = mx_level_byte(largest, how.float8 ? 8 : 2);
    shared.level = shared.scale = power_of_two_at(shared.byte);
  }
  if (!finite) {
    shared.level = float_from_bits(0x7fc00000u);
    shared.byte = how.two_levels ? 0x7f : 0xff;
  }
  return shared;
}

// The numbers of one group become code * level; NaN, all of them, where one is not finite.
LLMQ_INLINE constexpr void round_input_group(const InputGroups& how, float* values, int count) {
  const InputLevel shared = input_level(how, values, count);
  for (int k = 0; k < count; ++k) {
    const float steps = values[k] / shared.scale;
    const float code = how.float8 ? to_float(to_float8(steps))
                                  : float_from_bits(bits_from_float(e2m1_magnitude(magnitude_of(steps))) |
                                                    (bits_from_float(steps) & 0x80000000u));
    values[k] = code * shared.level;
  }
}

}  // namespace llmq

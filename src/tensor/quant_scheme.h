// What the bits of a quantized weight mean, as a value: compared, printed and parsed whole.
//
//   kInteger: value(n, k) = (code(n, k) - zero(n, g)) * scale(n, g),  g = k / group_size
//       (kernels/common/code_value.h)
//   kFloat8:  value(n, k) = e4m3(code(n, k)) * scale(n, g)
//   kFloat4:  value(n, k) = e2m1(code(n, k)) * scale(n, g)
// Scales of floats in groups have a form of their own (ScaleForm, tensor/block_scales.h).
//
// Activations of 8 bits are rounded before the product, per token with a scale found at run time, or per
// tensor with a scale found by calibration: integers symmetric in -128 .. 127, or E4M3, with scale =
// input_scale(max|x|) (tensor/quantized_matrix.h). Beside floats in groups they become such floats
// themselves, in groups of as many columns, with scales of the same form that are found at run time; the one
// number above two levels is calibrated.
//
// Text form: w<bits>a<16|8>[_g<N>|_channel|_tensor][_sym|_asym][_static], e.g. w4a16_g128_asym,
// w8a8_channel_sym; fp8 (channel scales, activations per token), fp8_static (tensor scales), fp8_block (128 x
// 128 blocks, activations in groups of 128). Floats in groups, with activations of 16 bits: nvfp4a16 (E2M1 in
// groups of 16), mxfp4 and mxfp8a16 (E2M1 and E4M3 in groups of 32); with activations as the weights: nvfp4,
// mxfp4a4, mxfp8.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tensor/dtype.h"

namespace llmq {

enum class Granularity : std::uint8_t { kGroup, kChannel, kTensor, kBlock };
enum class WeightType : std::uint8_t { kInteger, kFloat8, kFloat4 };
// What a scale is stored as: a number of scale_dtype; a power of two by its exponent; E4M3 over one number of
// the whole weight.
enum class ScaleForm : std::uint8_t { kNumber, kExponent, kTwoLevel };
// What a group's zero is: an integer that is taken off codes, or a number of scale_dtype that is added to
// what they are multiplied to (affine_values()).
enum class ZeroForm : std::uint8_t { kInteger, kAddend };
// What is done by that one number: compressed-tensors divides by it, modelopt multiplies.
enum class GlobalForm : std::uint8_t { kDivisor, kFactor };
// Where the scale of rounded activations comes from.
enum class ActivationScale : std::uint8_t { kNone, kToken, kTensor, kTokenGroup };
inline constexpr int kFloat8Block = 128;  // rows and columns of a block, columns of a token group
inline constexpr int kNvfp4Group = 16,
                     kMxGroup = 32;  // columns that share a scale of two levels, an exponent

struct QuantScheme {
  int bits = 4;                                   // of a weight code: 2..8
  int activation_bits = 16;                       // 16: not quantized
  WeightType weight_type = WeightType::kInteger;  // of rounded activations too
  ActivationScale activation_scale = ActivationScale::kNone;
  Granularity granularity = Granularity::kGroup;
  int group_size = 128;    // kGroup only
  bool symmetric = false;  // zero is 2^(bits-1) everywhere
  // Of scales that are numbers, as stored: kF16, kBF16 or kF32. Beside others what the weights were.
  DType scale_dtype = DType::kBF16;
  ZeroForm zero_form = ZeroForm::kInteger;  // as the format stores it

  int code_count() const { return 1 << bits; }
  int middle() const { return 1 << (bits - 1); }           // the zero of a symmetric scheme
  std::int64_t group_of(std::int64_t in_features) const {  // columns that share one scale
    return granularity == Granularity::kGroup   ? group_size
           : granularity == Granularity::kBlock ? kFloat8Block
                                                : in_features;
  }
  std::int64_t groups_of(std::int64_t in_features) const {
    const std::int64_t group = group_of(in_features);
    return (in_features + group - 1) / group;
  }
  ScaleForm scale_form() const {
    if (weight_type == WeightType::kInteger || granularity != Granularity::kGroup) return ScaleForm::kNumber;
    return group_size == kNvfp4Group ? ScaleForm::kTwoLevel : ScaleForm::kExponent;
  }
  bool rounds_inputs() const { return activation_scale != ActivationScale::kNone; }
  bool rounds_inputs_in_float_groups() const { return rounds_inputs() && scale_form() != ScaleForm::kNumber; }
  // Whether rounding inputs takes a number that calibration finds.
  bool calibrates_inputs() const {
    return activation_scale == ActivationScale::kTensor ||
           (rounds_inputs() && scale_form() == ScaleForm::kTwoLevel);
  }
  std::string text() const;
  bool operator==(const QuantScheme&) const = default;
};

// A scheme as asked for: parts left out stay open until the plan resolves them (no scheme given means w4a16
// with the largest of 128, 64, 32 that divides every quantized linear; asymmetric for AWQ, symmetric for
// GPTQ).
struct SchemeRequest {
  int bits = 4;
  int activation_bits = 16;
  std::optional<Granularity> granularity;
  std::optional<int> group_size;
  std::optional<bool> symmetric;
  WeightType weight_type = WeightType::kInteger;
  bool static_activations = false;
  bool operator==(const SchemeRequest&) const = default;
};

// Error(kUsage) naming the text, and the forms that would do.
SchemeRequest parse_scheme(std::string_view text);

}  // namespace llmq

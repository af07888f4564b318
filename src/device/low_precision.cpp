#include "device/low_precision.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "tensor/block_scales.h"

namespace llmq {
namespace {

constexpr std::int64_t kMostSummed = 0x7fffffff / (128 * 255);  // products whose sum INT32 holds

void check_float_inputs(const QuantizedMatrix& matrix) {
  const QuantScheme& scheme = matrix.scheme;
  if (scheme.activation_scale != ActivationScale::kTokenGroup || scheme.activation_bits != scheme.bits)
    fail(ErrorKind::kUnsupported, "inputs beside {} are rounded to the same floats, in the same groups",
         scheme.text());
  if (scheme.scale_form() != ScaleForm::kTwoLevel) return;
  const float factor = float_inputs(matrix).factor;
  if (!(matrix.input_scale > 0 && std::isfinite(matrix.input_scale) && std::isnormal(factor)))
    fail(ErrorKind::kUnsupported,
         "the global scales of the inputs and of the weight are {} and {}, which no product can be scaled by",
         matrix.input_scale, matrix.global_scale);
}

}  // namespace

void check_low_precision(const QuantizedMatrix& matrix) {
  const QuantScheme& scheme = matrix.scheme;
  const bool float8 = scheme.weight_type == WeightType::kFloat8;
  if (scheme.activation_bits == 16 || !scheme.rounds_inputs())
    fail(ErrorKind::kUnsupported, "a weight of scheme {} has no rounded inputs to be multiplied with",
         scheme.text());
  if (!matrix.column_group.empty())
    fail(ErrorKind::kUnsupported,
         "columns in another order than the weight's cannot be multiplied with rounded inputs");
  if (scheme.rounds_inputs_in_float_groups()) return check_float_inputs(matrix);
  if (scheme.activation_scale == ActivationScale::kTokenGroup &&
      !(float8 && scheme.granularity == Granularity::kBlock))
    fail(ErrorKind::kUnsupported, "inputs rounded in groups need a weight of float8 blocks, not {}",
         scheme.text());
  if (!float8 && scheme.granularity == Granularity::kBlock)
    fail(ErrorKind::kUnsupported, "integer weights in blocks cannot be multiplied with 8-bit inputs");
  if (!float8 && matrix.group() > kMostSummed)
    fail(ErrorKind::kUnsupported, "INT32 cannot hold the sum of {} products of 8-bit codes; {} are the most",
         matrix.group(), kMostSummed);
  if (scheme.activation_scale == ActivationScale::kTensor &&
      !(matrix.input_scale > 0 && matrix.input_scale < 0x1p127f))
    fail(ErrorKind::kUnsupported, "the calibrated scale of the inputs is {}; a number above 0 would do",
         matrix.input_scale);
}

FloatInputs float_inputs(const QuantizedMatrix& matrix) {
  FloatInputs inputs{input_groups(matrix.scheme, matrix.input_scale, matrix.global_form), 1};
  InputGroups weights = inputs.groups;
  weights.global = matrix.global_scale;
  inputs.factor = global_factor(inputs.groups) * global_factor(weights);
  return inputs;
}

void weight_levels(const QuantizedMatrix& matrix, std::int64_t n, BFloat16* into) {
  const QuantScheme& scheme = matrix.scheme;
  const bool two_levels = scheme.scale_form() == ScaleForm::kTwoLevel;
  const std::int64_t group = matrix.group(), groups = matrix.groups();
  for (std::int64_t g = 0; g < groups; ++g) {
    const float scale = matrix.scales[static_cast<std::size_t>(n * groups + g)];
    const float level = two_levels ? nvfp4_level_of(scale, matrix.global_scale, matrix.global_form) : scale;
    for (std::int64_t k = g * group; k < std::min(matrix.in_features, (g + 1) * group); ++k)
      into[k] = to_bfloat16(
          weight_value(scheme, matrix.codes[static_cast<std::size_t>(n * matrix.in_features + k)], 0, level));
  }
}

}  // namespace llmq

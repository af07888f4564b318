#include "tensor/block_scales.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/half.h"
#include "tensor/mxfp4.h"
#include "tensor/quantized_matrix.h"

namespace llmq {
namespace {

constexpr int kBias = 127;

int top_exponent(WeightType type) { return type == WeightType::kFloat8 ? 8 : 2; }

bool are_levels(const QuantizedMatrix& matrix) {
  std::array<float, 127> levels;  // without a sign
  for (std::size_t byte = 0; byte < levels.size(); ++byte)
    levels[byte] = nvfp4_scale(static_cast<std::uint8_t>(byte), matrix.global_scale, matrix.global_form);
  return std::all_of(matrix.scales.begin(), matrix.scales.end(), [&](float scale) {
    const std::uint8_t byte = nvfp4_byte_of(scale, matrix.global_scale, matrix.global_form);
    return byte < levels.size() && bits_from_float(levels[byte]) == bits_from_float(scale);
  });
}

bool are_powers_of_two(const QuantizedMatrix& matrix) {
  return std::all_of(matrix.scales.begin(), matrix.scales.end(), [](float scale) {
    return scale > 0 && std::isfinite(scale) && mxfp4_scale(mxfp4_byte(scale)) == scale;
  });
}

}  // namespace

float nvfp4_global(float largest, float top) {
  const float global = top * kE2M1Top / std::max(largest, std::numeric_limits<float>::min());
  return std::isfinite(global) ? global : 1.0f;
}

std::uint8_t nvfp4_byte(float scale_times_global) { return nvfp4_level(scale_times_global).bits; }

float nvfp4_scale(std::uint8_t byte, float global, GlobalForm form) {
  const float level = to_float(Float8{byte});
  return form == GlobalForm::kFactor ? level * global : level / global;
}

std::uint8_t nvfp4_byte_of(float scale, float global, GlobalForm form) {
  return to_float8(form == GlobalForm::kFactor ? scale / global : scale * global).bits;
}

float nvfp4_level_of(float scale, float global, GlobalForm form) {
  return to_float(Float8{nvfp4_byte_of(scale, global, form)});
}

bool has_scale_bytes(const QuantizedMatrix& matrix) {
  const ScaleForm form = matrix.scheme.scale_form();
  return form == ScaleForm::kExponent
             ? are_powers_of_two(matrix)
             : form == ScaleForm::kTwoLevel && level_factor(matrix) > 0 && are_levels(matrix);
}

std::uint8_t scale_byte(const QuantizedMatrix& matrix, std::size_t n) {
  return matrix.scheme.scale_form() == ScaleForm::kExponent
             ? mxfp4_byte(matrix.scales[n])
             : nvfp4_byte_of(matrix.scales[n], matrix.global_scale, matrix.global_form);
}

float level_factor(const QuantizedMatrix& matrix) {
  const float global = matrix.global_scale,
              factor = matrix.global_form == GlobalForm::kFactor ? global : 1 / global;
  return std::isnormal(factor * kLevelBits) && factor > 0 ? factor : 0;
}

int ocp_byte(float largest, WeightType type) { return std::ilogb(largest) - top_exponent(type) + kBias; }

std::uint8_t mx_byte(float largest, WeightType type) {
  return static_cast<std::uint8_t>(mx_level_byte(largest, top_exponent(type)));
}

std::uint8_t float_code(float scaled, WeightType type) {
  return type == WeightType::kFloat8 ? to_float8(scaled).bits : signed_e2m1_code(scaled);
}

InputGroups input_groups(const QuantScheme& scheme, float global, GlobalForm form) {
  InputGroups groups;
  if (!scheme.rounds_inputs_in_float_groups()) return groups;
  groups.size = scheme.group_size;
  groups.float8 = scheme.weight_type == WeightType::kFloat8;
  groups.two_levels = scheme.scale_form() == ScaleForm::kTwoLevel;
  groups.multiplies = form == GlobalForm::kFactor;
  groups.global = global;
  return groups;
}

}  // namespace llmq

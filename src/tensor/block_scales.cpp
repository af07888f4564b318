#include "tensor/block_scales.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/half.h"
#include "tensor/mxfp4.h"

namespace llmq {
namespace {

constexpr int kBias = 127;

int top_exponent(WeightType type) { return type == WeightType::kFloat8 ? 8 : 2; }

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

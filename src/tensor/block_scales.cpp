#include "tensor/block_scales.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/half.h"
#include "tensor/mxfp4.h"

namespace llmq {
namespace {

constexpr int kBias = 127, kLastByte = 254;
constexpr float kLeastScale = 0.125f;  // in place of 0

int top_exponent(WeightType type) { return type == WeightType::kFloat8 ? 8 : 2; }

}  // namespace

float nvfp4_global(float largest, float top) {
  const float global = top * kE2M1Top / std::max(largest, std::numeric_limits<float>::min());
  return std::isfinite(global) ? global : 1.0f;
}

std::uint8_t nvfp4_byte(float scale_times_global) {
  const std::uint8_t byte = to_float8(scale_times_global).bits;
  return byte == 0 ? to_float8(kLeastScale).bits : byte;
}

float nvfp4_scale(std::uint8_t byte, float global, GlobalForm form) {
  const float level = to_float(Float8{byte});
  return form == GlobalForm::kFactor ? level * global : level / global;
}

std::uint8_t nvfp4_byte_of(float scale, float global, GlobalForm form) {
  return to_float8(form == GlobalForm::kFactor ? scale / global : scale * global).bits;
}

int ocp_byte(float largest, WeightType type) { return std::ilogb(largest) - top_exponent(type) + kBias; }

std::uint8_t mx_byte(float largest, WeightType type) {
  const std::uint32_t bits = bits_from_float(largest) + (1u << 21);
  return static_cast<std::uint8_t>(
      std::clamp(static_cast<int>(bits >> 23) - top_exponent(type), 0, kLastByte));
}

std::uint8_t float_code(float scaled, WeightType type) {
  return type == WeightType::kFloat8 ? to_float8(scaled).bits : signed_e2m1_code(scaled);
}

}  // namespace llmq

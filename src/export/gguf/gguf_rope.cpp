#include "export/gguf/gguf_rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "model/gguf/gguf_names.h"
#include "model/rope.h"

namespace llmq {
namespace {

// In FP32 and in the order of convert_hf_to_gguf.py, where a number divided by a tensor is the tensor's
// reciprocal times the number.
std::vector<float> llama3_factors(const RopeSpec& rope) {
  const auto over = [](double number, float by) { return (1.0f / by) * static_cast<float>(number); };
  const auto length = static_cast<double>(rope.original_max_position);
  const auto low_wavelength = static_cast<float>(length / rope.low_freq_factor);
  const auto high_wavelength = static_cast<float>(length / rope.high_freq_factor);
  const auto factor = static_cast<float>(rope.factor);
  std::vector<float> factors;
  for (std::int64_t i = 0; i < rope.dims; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(rope.dims);
    const auto power = static_cast<float>(
        std::pow(static_cast<double>(static_cast<float>(rope.theta)), static_cast<double>(exponent)));
    const float wavelength = over(2 * M_PI, 1.0f / power);
    if (wavelength < high_wavelength) {
      factors.push_back(1.0f);
    } else if (wavelength > low_wavelength) {
      factors.push_back(factor);
    } else {
      const float smooth = (over(length, wavelength) - static_cast<float>(rope.low_freq_factor)) /
                           static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
      factors.push_back(1.0f / ((1.0f - smooth) / factor + smooth));
    }
  }
  return factors;
}

std::vector<float> in_float32(const std::vector<double>& values) {
  std::vector<float> result;
  result.reserve(values.size());
  for (const double value : values) result.push_back(static_cast<float>(value));
  return result;
}

std::string scaling_key(const GgufFamily& family, std::string_view name) {
  return fmt::format("{}.{}", family.key(GgufKey::kRopeScaling), name);
}

}  // namespace

const RopeSpec& gguf_rope(const ModelSpec& spec) { return spec.ropes.front(); }

RopeRefusal refused_gguf_rope(const RopeSpec& rope, const GgufFamily& family) {
  const bool long_factors = family.scaling == GgufScaling::kLongFactors;
  if (rope.kind == RopeKind::kDynamic) return {"rope_scaling", "GGUF has no place for dynamic rope scaling"};
  if (rope.kind == RopeKind::kLongRope && !long_factors)
    return {"rope_scaling",
            fmt::format("GGUF's {} models have no place for the factors of longrope", family.architecture)};
  if (long_factors && rope.kind != RopeKind::kDefault && rope.kind != RopeKind::kLongRope)
    return {"rope_scaling", fmt::format("GGUF's {} models scale rope by longrope only", family.architecture)};
  if ((family.scaling == GgufScaling::kShare) != (rope.kind == RopeKind::kProportional))
    return {"rope_parameters",
            fmt::format("GGUF's {} models turn {}", family.architecture,
                        family.scaling == GgufScaling::kShare ? "a share of the angles of full attention"
                                                              : "all angles")};
  if (rope.kind != RopeKind::kYarn) return {};
  // llama.cpp derives the attention factor from `factor` and rounds the ramp's ends.
  const double expected = rope.factor <= 1 ? 1.0 : 0.1 * std::log(rope.factor) + 1.0;
  const bool other = rope.attention_factor != 0 && std::abs(rope.attention_factor - expected) > 1e-6;
  const bool grows = family.has(GgufKey::kYarnLogMultiplier);
  const bool divides = family.has(GgufKey::kYarnDivisor);
  if (divides && rope.mscale_all_dim != 0 && (rope.mscale != 1 || rope.attention_factor != 0))
    return {"rope_parameters",
            fmt::format("llama.cpp's {} takes mscale for 1, and it is {}", family.architecture, rope.mscale)};
  if (grows && (rope.mscale == 0 || rope.mscale != rope.mscale_all_dim || rope.attention_factor != 0))
    return {
        "rope_scaling",
        fmt::format("llama.cpp's {} takes mscale and mscale_all_dim for equal ones, and these are {} and {}",
                    family.architecture, rope.mscale, rope.mscale_all_dim)};
  if (other || (!grows && !divides && (rope.mscale != 0 || rope.mscale_all_dim != 0)) ||
      rope.truncate == family.fine_ramp)
    return {
        "rope_scaling",
        fmt::format("llama.cpp computes yarn of {} with its default attention factor only, and what its ramp "
                    "is where truncate is {}",
                    family.architecture, !family.fine_ramp)};
  return {};
}

std::vector<RopeFactors> gguf_rope_factors(const RopeSpec& rope) {
  std::vector<RopeFactors> factors;
  if (rope.kind == RopeKind::kLlama3)
    factors.push_back({std::string(kRopeFactorsName), llama3_factors(rope)});
  if (rope.kind == RopeKind::kProportional) {
    std::vector<float> own(static_cast<std::size_t>(rope.dims / 2), kStandsStill);
    std::fill_n(own.begin(), rope.angles, 1.0f);
    factors.push_back({std::string(kRopeFactorsName), std::move(own)});
  }
  if (rope.kind == RopeKind::kLongRope) {
    factors.push_back({std::string(kLongFactorsName), in_float32(rope.long_factors)});
    factors.push_back({std::string(kShortFactorsName), in_float32(rope.short_factors)});
  }
  return factors;
}

void add_rope_attention_factor(const RopeSpec& rope, const GgufFamily& family, GgufMetadata& metadata) {
  if (rope.kind == RopeKind::kLongRope)
    metadata.set_f32(scaling_key(family, "attn_factor"), static_cast<float>(longrope_attention_factor(rope)));
}

void add_rope_scaling(const RopeSpec& rope, const GgufFamily& family, const Json& stated,
                      GgufMetadata& metadata) {
  if (rope.kind == RopeKind::kLinear || rope.kind == RopeKind::kYarn) {
    metadata.set_string(scaling_key(family, "type"), rope.kind == RopeKind::kLinear ? "linear" : "yarn");
    metadata.set_f32(scaling_key(family, "factor"), static_cast<float>(rope.factor));
  }
  if (rope.kind != RopeKind::kYarn) return;
  metadata.set_u32(family.key(GgufKey::kOriginalContext),
                   static_cast<std::uint32_t>(rope.original_max_position));
  if (rope.attention_factor != 0)
    metadata.set_f32(scaling_key(family, "yarn_attn_factor"), static_cast<float>(rope.attention_factor));
  if (family.fine_ramp || rope.beta_fast != 32 || stated.find("beta_fast") != nullptr)
    metadata.set_f32(scaling_key(family, "yarn_beta_fast"), static_cast<float>(rope.beta_fast));
  if (family.fine_ramp || rope.beta_slow != 1 || stated.find("beta_slow") != nullptr)
    metadata.set_f32(scaling_key(family, "yarn_beta_slow"), static_cast<float>(rope.beta_slow));
}

}  // namespace llmq

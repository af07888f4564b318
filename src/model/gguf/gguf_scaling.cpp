#include "model/gguf/gguf_scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <set>

#include "model/gguf/gguf_fields.h"
#include "model/gguf/gguf_names.h"
#include "model/rope.h"

namespace llmq {
namespace {

std::vector<float> read_rope_factors(const GgufHeader& header, const GgufTensor& tensor, std::int64_t dims) {
  if (tensor.dtype != DType::kF32 || tensor.shape.elements() != dims / 2)
    bad_gguf(
        header, tensor.name,
        fmt::format("is {} {}, not F32 [{}]", dtype_row(tensor.dtype).name, tensor.shape.text(), dims / 2));
  std::vector<float> factors(static_cast<std::size_t>(dims / 2));
  std::memcpy(factors.data(), tensor.data, factors.size() * sizeof(float));
  return factors;
}

// The divisor of frequency `pair` that Llama 3 prescribes (modeling_rope_utils.py,
// _compute_llama3_parameters; low_freq_factor 1).
double llama3_factor(std::int64_t pair, std::int64_t head_dim, double theta, double factor, double original,
                     double high) {
  const double low = 1;
  const double wavelength =
      2 * std::numbers::pi * std::pow(theta, 2.0 * static_cast<double>(pair) / static_cast<double>(head_dim));
  if (wavelength < original / high) return 1;
  if (wavelength > original / low) return factor;
  const double smooth = (original / wavelength - low) / (high - low);
  return 1 / ((1 - smooth) / factor + smooth);
}

// rope_freqs.weight back to {"rope_type": "llama3", ...}; null for factors that are all one. Scaling original
// context, low and high factor by a common number changes nothing, so low = 1 loses no generality; high = 4
// and a context of 8192 are what every published Llama 3 has, and high = 1 Llama 4 Scout.
Json llama3_scaling(const GgufHeader& header, const std::vector<float>& factors, std::int64_t head_dim,
                    double theta) {
  const float factor = *std::max_element(factors.begin(), factors.end());
  if (factor == 1.0f && *std::min_element(factors.begin(), factors.end()) == 1.0f) return Json();
  constexpr double kOriginal = 8192;
  const auto is_of = [&](std::size_t i, double expected) {
    // The converter computes in binary32: a few rounding steps of 2^-24, and smooth's difference can lose a
    // factor of ~4; 2^-18 is well above.
    return std::abs(factors[i] - expected) <= 0x1p-18 * expected;
  };
  const auto expected_of = [&](std::size_t i, double high) {
    return llama3_factor(static_cast<std::int64_t>(i), head_dim, theta, factor, kOriginal, high);
  };
  const auto all_are_of = [&](double high) {
    for (std::size_t i = 0; i < factors.size(); ++i)
      if (!is_of(i, expected_of(i, high))) return false;
    return true;
  };
  const double high = !all_are_of(4) && all_are_of(1) ? 1 : 4;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const double expected = expected_of(i, high);
    if (!is_of(i, expected))
      unsupported_gguf(
          header, std::string(kRopeFactorsName),
          fmt::format(
              "factor {} is {} where Llama 3's scaling by {} gives {}; other frequency factors cannot be "
              "told in a config",
              i, factors[i], factor, expected));
  }
  return Json::object({{"rope_type", "llama3"},
                       {"factor", static_cast<double>(factor)},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", high},
                       {"original_max_position_embeddings", std::int64_t{8192}}});
}

// <arch>.rope.scaling.* as a rope_scaling object, or null.
Json metadata_scaling(const GgufHeader& header, const GgufFamily& family) {
  const std::string arch = family.architecture, prefix = arch + ".rope.scaling.";
  const bool tenth = family.has(GgufKey::kYarnLogMultiplier), divides = family.has(GgufKey::kYarnDivisor);
  const std::string growth = tenth || divides ? family.key(GgufKey::kYarnLogMultiplier) : std::string();
  static const std::set<std::string, std::less<>> kKnown{
      "type",        "factor",         "original_context_length", "finetuned",
      "attn_factor", "yarn_beta_fast", "yarn_beta_slow",          "yarn_attn_factor"};
  for (const auto& [key, value] : header.metadata)
    if (key.starts_with(prefix) && key != growth &&
        !kKnown.contains(std::string_view(key).substr(prefix.size())))
      unsupported_gguf(header, key, "is not a rope scaling known here");
  const std::string type(header.find_string(prefix + "type").value_or("none"));
  if (type == "none") {
    const double linear = header.find_number(arch + ".rope.scale_linear").value_or(1.0);
    return linear == 1.0 ? Json() : Json::object({{"rope_type", "linear"}, {"factor", linear}});
  }
  if (type != "linear" && type != "yarn")
    unsupported_gguf(header, prefix + "type",
                     fmt::format("rope scaling \"{}\" is not read", type.substr(0, 64)));
  Json scaling = Json::object({{"rope_type", type}, {"factor", header.number(prefix + "factor")}});
  if (type == "linear") return scaling;
  if (const auto factor = header.find_number(prefix + "attn_factor"); factor && *factor != 1.0)
    unsupported_gguf(header, prefix + "attn_factor", fmt::format("is {}; only 1 is read", *factor));
  // llama.cpp computes it of the factor, whatever stands there.
  const double factor = scaling.at("factor").as_double();
  if (const auto said = header.find_number(prefix + "yarn_attn_factor");
      said && factor > 1 && std::abs(*said - (0.1 * std::log(factor) + 1)) > 2e-6)
    unsupported_gguf(header, prefix + "yarn_attn_factor",
                     fmt::format("is {}, which is not what follows of the factor {}", *said, factor));
  if (header.find(prefix + "original_context_length"))
    scaling["original_max_position_embeddings"] = header.integer(prefix + "original_context_length");
  if (const auto beta = header.find_number(prefix + "yarn_beta_fast")) scaling["beta_fast"] = *beta;
  if (const auto beta = header.find_number(prefix + "yarn_beta_slow")) scaling["beta_slow"] = *beta;
  if (const auto said = growth.empty() ? std::nullopt : header.find_number(growth)) {
    // In binary32 and perhaps times 0.1: of few digits, as configs have it.
    const double all_dim = std::round(*said * (tenth ? 1e7 : 1e6)) / 1e6;
    scaling["mscale"] = tenth ? all_dim : 1.0, scaling["mscale_all_dim"] = all_dim;
  }
  return scaling;
}

// Of rope_freqs.weight that has 1 for the first angles and else 1e30: a share of them turns. What the share
// of the head is cut to is so many again.
Json proportional_scaling(const GgufHeader& header, std::int64_t dims) {
  const GgufTensor* const tensor = find_gguf_tensor(header, kRopeFactorsName);
  if (tensor == nullptr) return Json();
  const std::vector<float> factors = read_rope_factors(header, *tensor, dims);
  const auto turning = std::find_if(factors.begin(), factors.end(), [](float own) { return own != 1.0f; });
  if (!std::all_of(turning, factors.end(), [](float own) { return own == kStandsStill; }))
    unsupported_gguf(header, tensor->name, "has other factors than 1, and behind those 1e30");
  const auto angles = static_cast<double>(std::distance(factors.begin(), turning));
  double share = 2 * angles / static_cast<double>(dims);
  if (share * static_cast<double>(dims) / 2 < angles) share = std::nextafter(share, 1.0);
  return Json::object({{"rope_type", "proportional"}, {"partial_rotary_factor", share}});
}

Json json_list(const std::vector<float>& values) {
  Json list = Json::array();
  for (const float value : values) list.push_back(static_cast<double>(value));
  return list;
}

// Both tensors of factors as {"type": "longrope", ...}, in the three keys that every Transformers reads where
// the attention factor is what follows from how much longer the context became.
Json longrope_scaling(const GgufHeader& header, const GgufFamily& family, const GgufRopeSizes& sizes) {
  const std::string key = family.key(GgufKey::kRopeScaling) + ".attn_factor";
  const auto told = static_cast<float>(header.find_number(key).value_or(1.0));
  const GgufTensor* const of_short = find_gguf_tensor(header, kShortFactorsName);
  const GgufTensor* const of_long = find_gguf_tensor(header, kLongFactorsName);
  if ((of_short == nullptr) != (of_long == nullptr))
    bad_gguf(header, std::string(of_short == nullptr ? kShortFactorsName : kLongFactorsName),
             "is missing, and its counterpart is there");
  if (of_short == nullptr) {
    if (told != 1)
      unsupported_gguf(header, key, fmt::format("is {}, without tensors of rope factors beside it", told));
    return Json();
  }
  Json scaling = Json::object({{"type", "longrope"},
                               {"short_factor", json_list(read_rope_factors(header, *of_short, sizes.dims))},
                               {"long_factor", json_list(read_rope_factors(header, *of_long, sizes.dims))}});
  RopeSpec rope;
  rope.original_max_position = gguf_size(header, family.key(GgufKey::kOriginalContext));
  rope.factor = static_cast<double>(sizes.context) / static_cast<double>(rope.original_max_position);
  if (told != static_cast<float>(longrope_attention_factor(rope)))
    scaling["attention_factor"] = static_cast<double>(told);
  return scaling;
}

}  // namespace

Json gguf_rope_scaling(const GgufHeader& header, const GgufFamily& family, const GgufRopeSizes& sizes) {
  if (family.scaling == GgufScaling::kShare) return proportional_scaling(header, sizes.dims);
  Json scaling = metadata_scaling(header, family);
  if (family.fine_ramp && !scaling.is_null()) scaling["truncate"] = false;
  if (family.scaling == GgufScaling::kLongFactors) {
    if (!scaling.is_null())
      unsupported_gguf(header, family.key(GgufKey::kRopeScaling) + ".type",
                       fmt::format("{} is scaled by longrope only", family.architecture));
    return longrope_scaling(header, family, sizes);
  }
  const GgufTensor* const factors = find_gguf_tensor(header, kRopeFactorsName);
  if (factors == nullptr) return scaling;
  if (!scaling.is_null())
    unsupported_gguf(header, std::string(kRopeFactorsName), "comes with another rope scaling");
  return llama3_scaling(header, read_rope_factors(header, *factors, sizes.dims), sizes.dims, sizes.theta);
}

}  // namespace llmq

// Schemes as text: w<bits>a<16|8>[_g<N>|_channel|_tensor][_sym|_asym].
#include "tensor/quant_scheme.h"

#include <charconv>

#include "base/error.h"

namespace llmq {
namespace {

constexpr std::int64_t kMaxGroup = 1 << 20;

[[noreturn]] void refuse(std::string_view text, const std::string& reason) {
  fail(ErrorKind::kUsage, {fmt::format("scheme '{}': {}", text, reason),
                           {},
                           {},
                           "write w<bits>a16 or w<bits>a8, then _g<N>, _channel or _tensor, then "
                           "_sym or _asym, as in w4a16_g128_asym, "
                           "or fp8, fp8_static, fp8_block, nvfp4, nvfp4a16, mxfp4, mxfp4a4, mxfp8, "
                           "mxfp8a16"});
}

// The decimal number at the front of `rest`, which loses it; nothing when there is none, or one with a
// leading zero.
std::optional<std::int64_t> take_number(std::string_view& rest) {
  std::int64_t value = 0;
  const auto [end, code] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (code != std::errc() || rest.front() == '-' || rest.front() == '0') return std::nullopt;
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  return value;
}

bool take(std::string_view& rest, std::string_view word) {
  if (!rest.starts_with(word)) return false;
  rest.remove_prefix(word.size());
  return true;
}

bool at_word_end(std::string_view rest) { return rest.empty() || rest.front() == '_'; }

SchemeRequest float8(Granularity granularity) {
  SchemeRequest request;
  request.bits = request.activation_bits = 8;
  request.weight_type = WeightType::kFloat8;
  request.static_activations = granularity == Granularity::kTensor;
  request.granularity = granularity;
  request.symmetric = true;
  return request;
}

SchemeRequest float_groups(WeightType type, int group, bool rounds_inputs) {
  SchemeRequest request;
  request.bits = type == WeightType::kFloat8 ? 8 : 4;
  if (rounds_inputs) request.activation_bits = request.bits;
  request.weight_type = type;
  request.granularity = Granularity::kGroup;
  request.group_size = group;
  request.symmetric = true;
  return request;
}

}  // namespace

std::string QuantScheme::text() const {
  if (weight_type == WeightType::kFloat4)
    return scale_form() == ScaleForm::kTwoLevel ? (rounds_inputs() ? "nvfp4" : "nvfp4a16")
           : rounds_inputs()                    ? "mxfp4a4"
                                                : "mxfp4";
  if (weight_type == WeightType::kFloat8)
    return granularity == Granularity::kGroup    ? (rounds_inputs() ? "mxfp8" : "mxfp8a16")
           : granularity == Granularity::kBlock  ? "fp8_block"
           : granularity == Granularity::kTensor ? (rounds_inputs() ? "fp8_static" : "fp8_tensor_a16")
                                                 : (rounds_inputs() ? "fp8" : "fp8a16");
  std::string out = fmt::format("w{}a{}", bits, activation_bits);
  switch (granularity) {
    case Granularity::kGroup:
      out += fmt::format("_g{}", group_size);
      break;
    case Granularity::kChannel:
      out += "_channel";
      break;
    case Granularity::kTensor:
      out += "_tensor";
      break;
    case Granularity::kBlock:
      out += "_block";
      break;
  }
  out += symmetric ? "_sym" : "_asym";
  return activation_scale == ActivationScale::kTensor ? out + "_static" : out;
}

SchemeRequest parse_scheme(std::string_view text) {
  if (text == "fp8") return float8(Granularity::kChannel);
  if (text == "fp8_static") return float8(Granularity::kTensor);
  if (text == "fp8_block") return float8(Granularity::kBlock);
  if (text == "nvfp4a16" || text == "nvfp4")
    return float_groups(WeightType::kFloat4, kNvfp4Group, text == "nvfp4");
  if (text == "mxfp4" || text == "mxfp4a16" || text == "mxfp4a4")
    return float_groups(WeightType::kFloat4, kMxGroup, text == "mxfp4a4");
  if (text == "mxfp8a16" || text == "mxfp8")
    return float_groups(WeightType::kFloat8, kMxGroup, text == "mxfp8");
  SchemeRequest request;
  std::string_view rest = text;
  if (!take(rest, "w")) refuse(text, "does not begin with w<bits>");
  const auto bits = take_number(rest);
  if (!bits || *bits < 2 || *bits > 8) refuse(text, "weights have 2 to 8 bits");
  if (!take(rest, "a")) refuse(text, "a<16|8>, the activations, should follow the weights' bits");
  const auto activation_bits = take_number(rest);
  if (!activation_bits || (*activation_bits != 16 && *activation_bits != 8) || !at_word_end(rest))
    refuse(text, "activations have 16 or 8 bits");
  request.bits = static_cast<int>(*bits);
  request.activation_bits = static_cast<int>(*activation_bits);

  std::string_view tail = rest;
  if (take(tail, "_g")) {
    const auto group = take_number(tail);
    if (!group || *group > kMaxGroup)
      refuse(text, fmt::format("_g is followed by the columns of a group, 1 to {}", kMaxGroup));
    request.granularity = Granularity::kGroup;
    request.group_size = static_cast<int>(*group);
    rest = tail;
  } else if (take(rest, "_channel")) {
    request.granularity = Granularity::kChannel;
  } else if (take(rest, "_tensor")) {
    request.granularity = Granularity::kTensor;
  }
  if (!at_word_end(rest)) refuse(text, fmt::format("'{}' is not understood", rest));
  if (take(rest, "_sym"))
    request.symmetric = true;
  else if (take(rest, "_asym"))
    request.symmetric = false;
  if (take(rest, "_static")) {
    if (request.activation_bits == 16) refuse(text, "_static says how 8-bit activations are scaled");
    request.static_activations = true;
  }
  if (!rest.empty()) refuse(text, fmt::format("'{}' is not understood", rest));
  return request;
}

}  // namespace llmq

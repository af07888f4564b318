#include "export/formats/compressed_codes.h"

#include <array>

#include "base/error.h"
#include "export/formats/compressed_floats.h"

namespace llmq {
namespace {

bool is_float8(const QuantScheme& scheme) { return scheme.weight_type == WeightType::kFloat8; }

Shape scale_shape(const PlannedModule& m) {
  const std::int64_t group = m.scheme.group_of(m.in_features), groups = (m.in_features + group - 1) / group;
  if (m.scheme.granularity == Granularity::kTensor) return {1};
  if (m.scheme.granularity == Granularity::kBlock)
    return {(m.out_features + kFloat8Block - 1) / kFloat8Block, groups};
  return {m.out_features, groups};
}

// The scales that are stored: one of those that stand in every row of a tensor or block.
std::vector<float> stored_scales(const QuantizedMatrix& matrix) {
  const QuantScheme& scheme = matrix.scheme;
  if (scheme.granularity == Granularity::kTensor) return {matrix.scales.at(0)};
  if (scheme.granularity != Granularity::kBlock) return matrix.scales;
  std::vector<float> scales;
  for (std::int64_t row = 0; row < matrix.out_features; row += kFloat8Block) {
    const auto first = matrix.scales.begin() + row * matrix.groups();
    scales.insert(scales.end(), first, first + matrix.groups());
  }
  return scales;
}

// Unsigned codes or zeros as the signed bytes of the file.
std::vector<std::byte> signed_bytes(std::span<const std::uint8_t> values, int middle) {
  std::vector<std::byte> bytes(values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    bytes[i] = static_cast<std::byte>(static_cast<std::uint8_t>(values[i] - middle));
  return bytes;
}

}  // namespace

std::string_view compressed_format(const QuantScheme& scheme) {
  if (scheme.weight_type == WeightType::kFloat4)
    return scheme.scale_form() == ScaleForm::kTwoLevel ? "nvfp4-pack-quantized" : "mxfp4-pack-quantized";
  if (scheme.scale_form() == ScaleForm::kExponent) return "mxfp8-quantized";
  if (is_float8(scheme)) return "float-quantized";
  return scheme.activation_bits == 8 ? "int-quantized" : "pack-quantized";
}

std::vector<TensorDeclaration> declare_codes(const PlannedModule& m) {
  const QuantScheme& scheme = m.scheme;
  std::vector<TensorDeclaration> tensors = {
      {m.module + ".weight",
       is_float8(scheme) ? DType::kF8E4M3 : DType::kI8,
       {m.out_features, m.in_features}},
      {m.module + ".weight_scale",
       scheme.scale_form() == ScaleForm::kExponent ? DType::kU8 : scheme.scale_dtype, scale_shape(m)}};
  if (!scheme.symmetric) tensors.push_back({m.module + ".weight_zero_point", DType::kI8, scale_shape(m)});
  if (scheme.activation_scale == ActivationScale::kTensor)
    tensors.push_back({m.module + ".input_scale", scheme.scale_dtype, {1}});
  return tensors;
}

std::vector<PackedTensor> pack_codes(const PlannedModule& m, const QuantizedMatrix& matrix) {
  const QuantScheme& scheme = matrix.scheme;
  std::vector<PackedTensor> tensors;
  for (TensorDeclaration& declaration : declare_codes(m)) tensors.push_back({declaration, {}});
  tensors[0].bytes = signed_bytes(matrix.codes, is_float8(scheme) ? 0 : scheme.middle());
  tensors[1].bytes = scheme.scale_form() == ScaleForm::kExponent
                         ? group_scale_bytes(matrix)
                         : scale_bytes(stored_scales(matrix), scheme.scale_dtype);
  if (!scheme.symmetric) tensors[2].bytes = signed_bytes(matrix.zeros, scheme.middle());
  if (scheme.activation_scale == ActivationScale::kTensor)
    tensors.back().bytes = scale_bytes(std::array{matrix.input_scale}, scheme.scale_dtype);
  return tensors;
}

std::optional<std::string> codes_refusal(const PlannedModule& m) {
  const QuantScheme& scheme = m.scheme;
  if (scheme.scale_form() != ScaleForm::kNumber) return float_groups_refusal(m);
  if (scheme.activation_bits != 8) return "float8 weights are written beside float8 inputs only";
  if (m.column_groups) return "columns in another order are not written beside quantized inputs";
  if (!is_float8(scheme) && scheme.granularity == Granularity::kBlock)
    return "integer weights in blocks cannot be written; per group or per channel can";
  if (!scheme.symmetric && scheme.granularity == Granularity::kTensor)
    return "one zero for a whole tensor cannot be written; per group or per channel can";
  if (scheme.activation_scale == ActivationScale::kTokenGroup && m.in_features % kFloat8Block != 0)
    return fmt::format("inputs in groups of {} do not divide the {} input features; fp8 does without groups",
                       kFloat8Block, m.in_features);
  return std::nullopt;
}

Json input_config(const QuantScheme& scheme) {
  if (!scheme.rounds_inputs()) return {};
  if (scheme.rounds_inputs_in_float_groups()) return float_group_arguments(scheme, true).to_json();
  const bool dynamic = scheme.activation_scale != ActivationScale::kTensor,
             grouped = scheme.activation_scale == ActivationScale::kTokenGroup;
  QuantizationArguments arguments;
  arguments.dynamic = dynamic;
  if (grouped) arguments.group_size = kFloat8Block;
  arguments.observer = dynamic ? Json() : Json("minmax");
  arguments.strategy = grouped ? "group" : dynamic ? "token" : "tensor";
  arguments.is_float = is_float8(scheme);
  return arguments.to_json();
}

QuantizationArguments float_group_arguments(const QuantScheme& scheme, bool of_inputs) {
  const bool two_levels = scheme.scale_form() == ScaleForm::kTwoLevel;
  QuantizationArguments arguments;
  arguments.group_size = scheme.group_size;
  arguments.dynamic = of_inputs;
  arguments.local = of_inputs && two_levels;
  arguments.bits = scheme.bits;
  if (of_inputs) arguments.observer = two_levels ? Json("static_minmax") : Json();
  arguments.strategy = two_levels ? "tensor_group" : "group";
  arguments.is_float = true;
  arguments.scale_dtype = two_levels ? "torch.float8_e4m3fn" : "torch.uint8";
  return arguments;
}

Json QuantizationArguments::to_json() const {
  return Json::object({{"actorder", column_order},
                       {"block_structure", block_structure},
                       {"dynamic", local ? Json("local") : Json(dynamic)},
                       {"group_size", group_size},
                       {"num_bits", bits},
                       {"observer", observer},
                       {"observer_kwargs", Json::object()},
                       {"scale_dtype", scale_dtype},
                       {"strategy", strategy},
                       {"symmetric", symmetric},
                       {"type", is_float ? "float" : "int"},
                       {"zp_dtype", symmetric ? Json() : Json("torch.int8")}});
}

}  // namespace llmq

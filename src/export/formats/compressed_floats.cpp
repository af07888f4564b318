#include "export/formats/compressed_floats.h"

#include <array>

#include "base/error.h"
#include "tensor/block_scales.h"
#include "tensor/mxfp4.h"

namespace llmq {

std::vector<TensorDeclaration> declare_float4(const PlannedModule& m) {
  const bool two_levels = m.scheme.scale_form() == ScaleForm::kTwoLevel;
  std::vector<TensorDeclaration> tensors = {
      {m.module + ".weight_packed", DType::kU8, {m.out_features, m.in_features / 2}},
      {m.module + ".weight_scale",
       two_levels ? DType::kF8E4M3 : DType::kU8,
       {m.out_features, m.in_features / m.scheme.group_size}}};
  if (two_levels) tensors.push_back({m.module + ".weight_global_scale", DType::kF32, {1}});
  if (m.scheme.calibrates_inputs()) tensors.push_back({m.module + ".input_global_scale", DType::kF32, {1}});
  return tensors;
}

std::vector<PackedTensor> pack_float4(const PlannedModule& m, const QuantizedMatrix& matrix) {
  std::vector<PackedTensor> tensors;
  for (TensorDeclaration& declaration : declare_float4(m)) tensors.push_back({declaration, {}});
  std::vector<std::byte>& pairs = tensors[0].bytes;
  pairs.resize(matrix.codes.size() / 2);
  for (std::size_t i = 0; i < pairs.size(); ++i)
    pairs[i] = static_cast<std::byte>(matrix.codes[2 * i] | matrix.codes[2 * i + 1] << 4);
  tensors[1].bytes = group_scale_bytes(matrix);
  put_globals(matrix, GlobalForm::kDivisor, tensors);
  return tensors;
}

void put_globals(const QuantizedMatrix& matrix, GlobalForm form, std::vector<PackedTensor>& tensors) {
  const auto put = [&](std::size_t at, float global) {
    const float stored = matrix.global_form == form ? global : 1 / global;
    if (tensors.size() > at) tensors[at].bytes = scale_bytes(std::array{stored}, DType::kF32);
  };
  put(2, matrix.global_scale);
  put(3, matrix.input_scale);
}

std::vector<std::byte> group_scale_bytes(const QuantizedMatrix& matrix) {
  const bool two_levels = matrix.scheme.scale_form() == ScaleForm::kTwoLevel;
  std::vector<std::byte> bytes;
  bytes.reserve(matrix.scales.size());
  for (const float scale : matrix.scales) {
    const std::uint8_t byte =
        two_levels ? nvfp4_byte_of(scale, matrix.global_scale, matrix.global_form) : mxfp4_byte(scale);
    const float back =
        two_levels ? nvfp4_scale(byte, matrix.global_scale, matrix.global_form) : mxfp4_scale(byte);
    if (back != scale)
      fail(ErrorKind::kInternal, "the scale {} has no byte: {} stands for {}", scale, byte, back);
    bytes.push_back(static_cast<std::byte>(byte));
  }
  return bytes;
}

std::optional<std::string> float_groups_refusal(const PlannedModule& m) {
  const QuantScheme& scheme = m.scheme;
  if (m.column_groups)
    return "floats in groups have no index of groups; gptq.order gar keeps columns where they are";
  if (scheme.group_size != kMxGroup && scheme.scale_form() != ScaleForm::kTwoLevel)
    return fmt::format("floats come in groups of {}, or E2M1 in groups of {}, not of {}", kMxGroup,
                       kNvfp4Group, scheme.group_size);
  if (scheme.weight_type == WeightType::kFloat8 && scheme.scale_form() == ScaleForm::kTwoLevel)
    return fmt::format("float8 weights in groups of {} cannot be written; mxfp8a16 can", kNvfp4Group);
  return std::nullopt;
}

}  // namespace llmq

// Format "safetensors": every linear dense in FP32, as its codes dequantize. Any loader reads it, and it saves nothing: it is for methods
// whose result no packed format holds, and for programs that know none of them.
//
//   <linear>.weight   F32 [out, in]   (code - zero) * scale, or the column as it was (QuantizedMatrix::kept_columns)
//
// FP32 holds every such product as it is rounded here, so a loader computes with the weights that llmq computed with; config.json says float32.
#include "export/packed_formats.h"

namespace llmq {
namespace {

std::vector<TensorDeclaration> declare(const PlannedModule& m) {
  return {{m.module + ".weight", DType::kF32, {m.out_features, m.in_features}}};
}

std::vector<PackedTensor> pack(const PlannedModule& m, const QuantizedMatrix& matrix) {
  std::vector<float> values(matrix.codes.size());
  dequantize(matrix, values);
  const auto bytes = std::as_bytes(std::span(values));
  return {{declare(m).front(), {bytes.begin(), bytes.end()}}};
}

Json config(std::span<const PlannedModule>, std::span<const std::string>) { return {}; }

std::optional<std::string> refusal(const PlannedModule& m, const PlannedModule&) {
  if (m.scheme.activation_bits != 16) return "format safetensors cannot say that inputs are rounded";
  return std::nullopt;
}

}  // namespace

const PackedFormatRow kDenseFormat = {"safetensors", declare, pack, config, refusal, {}, true};

}  // namespace llmq

// Format "safetensors": every linear dense in FP32, as its codes dequantize. Any loader reads it, and it
// saves nothing: it is for methods whose result no packed format holds, and for programs that know none of
// them.
//
//   <linear>.weight   F32 [out, in]   (code - zero) * scale, or the column as it was
//                                     (QuantizedMatrix::kept_columns)
//
// FP32 holds every such product as it is rounded here, so a loader computes with the weights that llmq
// computed with; config.json says float32.
#include <cstring>

#include "export/formats/packed_formats.h"

namespace llmq {
namespace {

std::vector<TensorDeclaration> dense_tensors(const PlannedModule& m) {
  return {{m.module + ".weight", DType::kF32, {m.out_features, m.in_features}}};
}

std::vector<PackedTensor> pack_dense(const PlannedModule& m, const QuantizedMatrix& matrix) {
  const auto columns = static_cast<std::size_t>(matrix.in_features);
  std::vector<std::byte> bytes(matrix.codes.size() * sizeof(float));
  std::vector<float> row(columns);
  for (std::int64_t n = 0; n < matrix.out_features; ++n) {
    dequantize_row(matrix, n, row.data());
    std::memcpy(bytes.data() + static_cast<std::size_t>(n) * columns * sizeof(float), row.data(),
                columns * sizeof(float));
  }
  std::vector<PackedTensor> tensors;
  tensors.push_back({dense_tensors(m).front(), std::move(bytes)});
  return tensors;
}

Json dense_config(const ListedModules&) { return {}; }

std::optional<std::string> dense_refusal(const PlannedModule& m, const PlannedModule&) {
  if (m.scheme.activation_bits != 16) return "format safetensors cannot say that inputs are rounded";
  return std::nullopt;
}

}  // namespace

const PackedFormatRow kDenseFormat = {.name = "safetensors",
                                      .declare = dense_tensors,
                                      .pack = pack_dense,
                                      .config = dense_config,
                                      .refusal = dense_refusal,
                                      .float4 = true,
                                      .float8 = true,
                                      .dense = true,
                                      .packing_bytes = 4};

}  // namespace llmq

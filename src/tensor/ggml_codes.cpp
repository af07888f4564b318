#include "tensor/ggml_codes.h"

#include "tensor/ggml_blocks.h"

namespace llmq {
namespace {

// Values of a table are integers of 8 bits, and are codes around the middle of these.
constexpr int kTableBits = 8;
constexpr int kTableZero = 128;

}  // namespace

bool has_codes(DType dtype) { return block_layout(dtype) != nullptr; }

QuantizedMatrix matrix_of_blocks(DType dtype, std::int64_t columns) {
  const BlockLayout& layout = *block_layout(dtype);
  QuantizedMatrix matrix;
  matrix.in_features = columns;
  matrix.scheme.bits = layout.values != nullptr ? kTableBits : layout.bits();
  matrix.scheme.granularity = Granularity::kGroup;
  matrix.scheme.group_size = layout.sub_block;
  matrix.scheme.symmetric = !layout.has_minimum();  // layout.zero is the middle in all the others
  matrix.scheme.scale_dtype = layout.scale_codes == ScaleCodes::kNone ? DType::kF16 : DType::kF32;
  if (layout.scale_codes != ScaleCodes::kNone) matrix.factors.together = layout.sub_blocks();
  return matrix;
}

namespace {

void append_factors(const BlockLayout& layout, const BlockFields& fields, ScaleFactors& factors) {
  factors.d.push_back(fields.d);
  if (layout.has_minimum()) factors.m.push_back(fields.m);
  for (std::size_t j = 0; j < static_cast<std::size_t>(layout.sub_blocks()); ++j) {
    factors.s.push_back(static_cast<std::int8_t>(fields.s[j]));
    if (layout.has_minimum()) factors.t.push_back(static_cast<std::uint8_t>(fields.t[j]));
  }
}

}  // namespace

void append_block_row(DType dtype, const void* bytes, QuantizedMatrix& matrix) {
  const BlockLayout& layout = *block_layout(dtype);
  const auto* block = static_cast<const std::uint8_t*>(bytes);
  for (std::int64_t k = 0; k < matrix.in_features;
       k += layout.elements, block += dtype_row(dtype).block_bytes) {
    const BlockFields fields = read_block(layout, block);
    for (std::size_t i = 0; i < static_cast<std::size_t>(layout.elements); ++i)
      matrix.codes.push_back(layout.values == nullptr
                                 ? fields.q[i]
                                 : static_cast<std::uint8_t>((*layout.values)[fields.q[i]] + kTableZero));
    if (matrix.factors.together > 0) append_factors(layout, fields, matrix.factors);
    for (std::size_t j = 0; j < static_cast<std::size_t>(layout.sub_blocks()); ++j) {
      matrix.scales.push_back(to_float(fields.d) * static_cast<float>(fields.s[j]));
      matrix.zeros.push_back(static_cast<std::uint8_t>(layout.values != nullptr ? kTableZero : layout.zero));
      if (layout.has_minimum()) matrix.minima.push_back(to_float(fields.m) * static_cast<float>(fields.t[j]));
    }
  }
  ++matrix.out_features;
}

}  // namespace llmq

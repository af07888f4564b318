#include "tensor/ggml_codes.h"

#include <cstddef>

#include "tensor/block_scales.h"
#include "tensor/ggml_blocks.h"
#include "tensor/mxfp4.h"

namespace llmq {
namespace {

// Values of a table are integers of 8 bits, and are codes around the middle of these.
constexpr int kTableBits = 8;
constexpr int kTableZero = 128;

// Blocks of floats: groups of 16 or 32 codes, a byte of scale each in front of all of them; code j of a group
// is in the low half of byte j, half a group later in the high one.
QuantizedMatrix matrix_of_floats(DType dtype, std::int64_t columns, float scale) {
  QuantizedMatrix matrix;
  matrix.in_features = columns;
  matrix.scheme.bits = 4;
  matrix.scheme.weight_type = WeightType::kFloat4;
  matrix.scheme.granularity = Granularity::kGroup;
  matrix.scheme.group_size = dtype == DType::kMXFP4 ? kMxGroup : kNvfp4Group;
  matrix.scheme.symmetric = true;
  if (dtype == DType::kNVFP4) matrix.global_scale = scale, matrix.global_form = GlobalForm::kFactor;
  return matrix;
}

// Of E4M3 no sign is looked at; what is no number is 0, and with the sign as large as it looks.
float ggml_level(std::uint8_t byte, float global) {
  constexpr std::uint8_t kNoNumber = 0x7f;
  const auto level = static_cast<std::uint8_t>(byte & kNoNumber);
  if (level == kNoNumber) return byte == kNoNumber ? 0.0f : 480.0f * global;
  return nvfp4_scale(level, global, GlobalForm::kFactor);
}

void append_floats(DType dtype, const std::uint8_t* block, QuantizedMatrix& matrix) {
  const auto group = static_cast<std::size_t>(matrix.group());
  const std::size_t scales = static_cast<std::size_t>(dtype_row(dtype).block_elements) / group;
  for (std::size_t j = 0; j < scales; ++j) {
    matrix.scales.push_back(dtype == DType::kMXFP4 ? mxfp4_scale(block[j])
                                                   : ggml_level(block[j], matrix.global_scale));
    matrix.zeros.push_back(0);
    const std::uint8_t* const pairs = block + scales + j * group / 2;
    for (std::size_t i = 0; i < group; ++i) {
      const std::uint8_t code = i < group / 2 ? pairs[i] & 15 : pairs[i - group / 2] >> 4;
      matrix.codes.push_back(code == kE2M1MinusZero ? 0 : code);
    }
  }
}

}  // namespace

bool has_codes(DType dtype) {
  return block_layout(dtype) != nullptr || dtype == DType::kMXFP4 || dtype == DType::kNVFP4;
}

QuantizedMatrix matrix_of_blocks(DType dtype, std::int64_t columns, float scale) {
  if (block_layout(dtype) == nullptr) return matrix_of_floats(dtype, columns, scale);
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
  const auto* block = static_cast<const std::uint8_t*>(bytes);
  if (block_layout(dtype) == nullptr) {
    for (std::int64_t k = 0; k < matrix.in_features;
         k += dtype_row(dtype).block_elements, block += dtype_row(dtype).block_bytes)
      append_floats(dtype, block, matrix);
    ++matrix.out_features;
    return;
  }
  const BlockLayout& layout = *block_layout(dtype);
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

void append_float_row(DType dtype, const QuantizedMatrix& matrix, std::int64_t n,
                      std::vector<std::byte>& bytes) {
  const auto in_group = static_cast<std::size_t>(matrix.group());
  const std::size_t groups = static_cast<std::size_t>(dtype_row(dtype).block_elements) / in_group;
  const auto put = [&](int byte) { bytes.push_back(static_cast<std::byte>(byte)); };
  const float* const scales = matrix.scales.data() + n * matrix.groups();
  const std::uint8_t* const codes = matrix.codes.data() + n * matrix.in_features;
  for (std::size_t first = 0; first < static_cast<std::size_t>(matrix.groups()); first += groups) {
    for (std::size_t j = first; j < first + groups; ++j)
      put(dtype == DType::kMXFP4 ? mxfp4_byte(scales[j])
                                 : nvfp4_byte_of(scales[j], matrix.global_scale, matrix.global_form));
    for (const std::uint8_t* own = codes + first * in_group; own < codes + (first + groups) * in_group;
         own += in_group)
      for (std::size_t i = 0; i < in_group / 2; ++i) put(own[i] | own[i + in_group / 2] << 4);
  }
}

}  // namespace llmq

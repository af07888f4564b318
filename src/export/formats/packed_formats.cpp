#include "export/formats/packed_formats.h"

#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/half.h"

namespace llmq {

static_assert(std::endian::native == std::endian::little, "words are written as they lie in memory");

std::span<const PackedFormatRow* const> packed_formats() {
  static constexpr std::array<const PackedFormatRow*, 4> kFormats = {
      &kCompressedTensorsFormat, &kAwqGemmFormat, &kGptqFormat, &kGptqV2Format};
  return kFormats;
}

const PackedFormatRow& packed_format(std::string_view name) {
  if (name == kDenseFormat.name) return kDenseFormat;
  std::string known;
  for (const PackedFormatRow* row : packed_formats()) {
    if (row->name == name) return *row;
    known += std::string(row->name) + ", ";
  }
  known += kDenseFormat.name;
  fail(ErrorKind::kUnsupported, {fmt::format("the format '{}' is not written by this version", name),
                                 {},
                                 "format",
                                 "formats: " + known});
}

std::vector<std::byte> word_bytes(std::span<const std::uint32_t> words) {
  const auto bytes = std::as_bytes(words);
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> group_index_bytes(const QuantizedMatrix& matrix) {
  std::vector<std::uint32_t> index;
  for (std::int64_t k = 0; k < matrix.in_features; ++k)
    index.push_back(static_cast<std::uint32_t>(matrix.group_of_column(k)));
  return word_bytes(index);
}

std::vector<std::byte> scale_bytes(std::span<const float> scales, DType dtype) {
  const std::size_t width = static_cast<std::size_t>(element_bytes(dtype));
  std::vector<std::byte> bytes(scales.size() * width);
  std::byte* at = bytes.data();
  for (const float scale : scales) {
    std::uint32_t bits = bits_from_float(scale);
    float stored = scale;
    if (dtype == DType::kBF16) {
      const BFloat16 half = to_bfloat16(scale);
      bits = half.bits, stored = to_float(half);
    } else if (dtype == DType::kF16) {
      const Float16 half = to_float16(scale);
      bits = half.bits, stored = to_float(half);
    } else if (dtype != DType::kF32) {
      fail(ErrorKind::kInternal, "scales cannot be stored as {}", dtype_row(dtype).name);
    }
    if (stored != scale)
      fail(ErrorKind::kInternal, "the scale {} is not representable as {}", scale, dtype_row(dtype).name);
    std::memcpy(at, &bits, width);
    at += width;
  }
  return bytes;
}

std::vector<std::string> weight_tensor_names(const std::string& module) {
  std::vector<std::string> names;
  for (const char* suffix :
       {".weight", ".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_shape", ".weight_g_idx",
        ".input_scale", ".qweight", ".qzeros", ".scales", ".g_idx"})
    names.push_back(module + suffix);
  return names;
}

}  // namespace llmq

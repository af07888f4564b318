#include "export/formats/packed_formats.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/error.h"
#include "model/packed/packed_tensors.h"
#include "tensor/stored_float.h"

namespace llmq {

static_assert(std::endian::native == std::endian::little, "words are written as they lie in memory");

std::span<const PackedFormatRow* const> packed_formats() {
  static constexpr std::array<const PackedFormatRow*, 7> kFormats = {
      &kCompressedTensorsFormat, &kAwqGemmFormat, &kGptqFormat, &kGptqV2Format, &kMxfp4Format, &kMlxFormatRow,
      &kModeloptFormat};
  return kFormats;
}

const PackedFormatRow& packed_format(std::string_view name) {
  if (name == kDenseFormat.name) return kDenseFormat;
  for (const PackedFormatRow* row : packed_formats())
    if (row->name == name) return *row;
  std::string known;
  for (const std::string& each : packed_format_names()) known += (known.empty() ? "" : ", ") + each;
  fail(ErrorKind::kUnsupported, {fmt::format("the format '{}' is not written by this version", name),
                                 {},
                                 "format",
                                 "formats: " + known});
}

std::vector<std::string> packed_format_names() {
  std::vector<std::string> names;
  for (const PackedFormatRow* row : packed_formats()) names.emplace_back(row->name);
  names.emplace_back(kDenseFormat.name);
  return names;
}

DType scale_dtype(const PackedFormatRow& format, DType weight) {
  return format.scale_dtype.value_or(weight == DType::kF16 ? DType::kF16 : DType::kBF16);
}

void check_model_written(const PackedFormatRow& format, const ModelSpec& spec, const std::string& file) {
  if (format.model_refusal == nullptr) return;
  if (std::string why = format.model_refusal(spec); !why.empty())
    fail(ErrorKind::kUnsupported, {fmt::format("format {} has no place for this model: {}", format.name, why),
                                   file, "format", "write format: compressed-tensors"});
}

void check_kv_cache_place(const PackedFormatRow& format, const std::string& source) {
  if (format.kv_cache_scheme != nullptr) return;
  std::string others;
  for (const PackedFormatRow* row : packed_formats())
    if (row->kv_cache_scheme != nullptr) others += (others.empty() ? "" : " or ") + std::string(row->name);
  fail(ErrorKind::kUnsupported,
       {fmt::format("format {} has no place for the scales of a KV cache", format.name), source, "kv_cache",
        "write format: " + others});
}

namespace {

std::optional<std::string> refusal_of(const PackedFormatRow& row, const PlannedModule& module,
                                      const PlannedModule& first) {
  const WeightType type = module.scheme.weight_type;
  if ((type == WeightType::kFloat4 && !row.float4) || (type == WeightType::kFloat8 && !row.float8))
    return fmt::format("format {} has no place for codes of scheme {}", row.name, module.scheme.text());
  return row.refusal(module, first);
}

}  // namespace

void check_expressible(const std::string& format, std::span<const PlannedModule> modules) {
  const PackedFormatRow& row = packed_format(format);
  if (modules.empty())
    fail(ErrorKind::kUnsupported, {"no linear is left to quantize", {}, "ignore", "ignore fewer modules"});
  for (const PlannedModule& m : modules) {
    const std::optional<std::string> reason = refusal_of(row, m, modules.front());
    if (!reason) continue;
    std::string others;
    for (const PackedFormatRow* other : packed_formats()) {
      const auto refuses = [&](const PlannedModule& each) {
        return refusal_of(*other, each, modules.front()).has_value();
      };
      const bool of_any_model = other->model_refusal == nullptr;
      if (other != &row && of_any_model && std::none_of(modules.begin(), modules.end(), refuses))
        others += (others.empty() ? "" : " or ") + std::string(other->name);
    }
    fail(ErrorKind::kUnsupported,
         {*reason, {}, m.module, others.empty() ? "" : "format: " + others + " can express every module"});
  }
}

int group_size_of(const QuantScheme& scheme) {
  return scheme.granularity == Granularity::kGroup ? scheme.group_size : -1;
}

std::uint64_t stored_bits(const std::string& format, const PlannedModule& module) {
  std::uint64_t bits = 0;
  for (const TensorDeclaration& tensor : packed_format(format).declare(module))
    if (!tensor.name.ends_with(".weight_shape"))
      bits += 8 * TensorView(static_cast<const void*>(nullptr), tensor.dtype, tensor.shape).bytes();
  return bits;
}

double stored_bits_per_weight(const std::string& format, std::span<const PlannedModule> modules) {
  double bits = 0, weights = 0;
  for (const PlannedModule& m : modules) {
    weights += static_cast<double>(m.out_features) * static_cast<double>(m.in_features);
    bits += static_cast<double>(stored_bits(format, m));
  }
  return weights == 0 ? 0 : bits / weights;
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
  for (const float scale : scales)
    if (stored_float(scale, dtype) != scale)
      fail(ErrorKind::kInternal, "the scale {} is not representable as {}", scale, dtype_row(dtype).name);
  return stored_floats(scales, dtype);
}

std::vector<std::string> weight_tensor_names(const std::string& module) {
  std::vector<std::string> names = {module + kDenseSuffix, module + ".biases"};  // MLX's, and beside it
  for (const char* suffix : kPackedSuffixes) names.push_back(module + suffix);
  return names;
}

}  // namespace llmq

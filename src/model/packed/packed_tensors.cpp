#include "model/packed/packed_tensors.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "base/half.h"
#include "model/packed/packed_bytes.h"
#include "model/packed/packed_floats.h"
#include "model/packed/packed_sizes.h"
#include "model/tensor_reading.h"
#include "tensor/packed_layout.h"

namespace llmq {
namespace {

// The group of each column, checked. Where every run of `group` columns shares one, whatever the groups are
// called, columns need no index: the groups are renamed when the weight is read.
void read_group_index(const Checkpoint& checkpoint, const std::string& name, PackedTensors& packed) {
  packed.index = &expect(checkpoint, name, DType::kI32, {packed.in_features});
  packed.column_group = copy_elements<std::int32_t>(checkpoint, *packed.index);
  const std::int64_t group = packed.scheme.group_of(packed.in_features);
  for (std::int64_t k = 0; k < packed.in_features; ++k) {
    const std::int32_t g = packed.column_group[static_cast<std::size_t>(k)];
    if (g < 0 || g >= packed.groups)
      bad_tensor(checkpoint, name,
                 fmt::format("puts column {} into group {}, and there are {}", k, g, packed.groups));
    packed.reordered =
        packed.reordered || g != packed.column_group[static_cast<std::size_t>(k / group * group)];
  }
}

// [out, groups] by the groups as stored -> by the runs of columns.
template <typename T>
void rename_groups(const PackedTensors& packed, std::vector<T>& values) {
  const std::vector<T> stored = values;
  const std::int64_t group = packed.scheme.group_of(packed.in_features);
  for (std::int64_t n = 0; n < packed.out_features; ++n)
    for (std::int64_t g = 0; g < packed.groups; ++g)
      values[static_cast<std::size_t>(n * packed.groups + g)] = stored[static_cast<std::size_t>(
          n * packed.groups + packed.column_group[static_cast<std::size_t>(g * group)])];
}

PackedTensors open_compressed(const Checkpoint& checkpoint, const std::string& module,
                              const QuantScheme& scheme) {
  PackedTensors packed;
  packed.scheme = scheme;
  const std::string shape_name = module + ".weight_shape";
  const StoredTensor& shape = find_tensor(checkpoint, shape_name);
  if ((shape.view.dtype != DType::kI64 && shape.view.dtype != DType::kI32) || !(shape.view.shape == Shape{2}))
    bad_tensor(
        checkpoint, shape_name,
        fmt::format("is {} {}, expected I64 [2]", dtype_row(shape.view.dtype).name, shape.view.shape.text()));
  if (shape.view.dtype == DType::kI64) {
    const auto extents = copy_elements<std::int64_t>(checkpoint, shape);
    packed.out_features = extents[0], packed.in_features = extents[1];
  } else {
    const auto extents = copy_elements<std::int32_t>(checkpoint, shape);
    packed.out_features = extents[0], packed.in_features = extents[1];
  }
  check_packed_size(checkpoint, shape_name, packed.out_features, packed.in_features);
  const std::string codes_name = module + kPackedSuffix;
  packed.groups = groups_of_packed(checkpoint, codes_name, scheme, packed.in_features);
  const auto words = [&](std::int64_t count) {
    return static_cast<std::int64_t>(
        ceil_div(static_cast<std::uint64_t>(count) * static_cast<std::uint64_t>(scheme.bits), 32));
  };
  if (scheme.weight_type == WeightType::kFloat8)
    bad_tensor(checkpoint, codes_name,
               "holds packed integers, although quantization_config says float weights");
  packed.shape = &shape;
  packed.codes =
      &expect(checkpoint, codes_name, DType::kI32, {packed.out_features, words(packed.in_features)});
  const std::string scale_name = module + ".weight_scale";
  packed.scales = scheme.granularity == Granularity::kTensor
                      ? &expect_scales(checkpoint, scale_name, {Shape{1}, Shape{1, 1}, Shape{}})
                      : &expect_scales(checkpoint, scale_name, {Shape{packed.out_features, packed.groups}});
  if (!scheme.symmetric)
    packed.zeros = &expect(checkpoint, module + ".weight_zero_point", DType::kI32,
                           {words(packed.out_features), packed.groups});
  packed.scheme.scale_dtype = packed.scales->view.dtype;
  return packed;
}

PackedTensors open_awq(const Checkpoint& checkpoint, const std::string& module, const QuantScheme& scheme) {
  PackedTensors packed;
  packed.scheme = scheme;
  const std::string codes_name = module + kTransposedSuffix;
  const StoredTensor& codes = find_tensor(checkpoint, codes_name);
  if (codes.view.shape.rank() != 2)
    bad_tensor(checkpoint, codes_name,
               fmt::format("has shape {}, expected [in, out/8]", codes.view.shape.text()));
  packed.in_features = codes.view.shape[0];
  const std::int64_t words = codes.view.shape[1];
  if (words < 1 || words >= (std::int64_t{1} << 28))
    bad_tensor(checkpoint, codes_name, fmt::format("has shape {}", codes.view.shape.text()));
  packed.out_features = words * 8;
  check_packed_size(checkpoint, codes_name, packed.out_features, packed.in_features);
  packed.groups = groups_of_packed(checkpoint, codes_name, scheme, packed.in_features);
  packed.codes = &expect(checkpoint, codes_name, DType::kI32, {packed.in_features, words});
  packed.scales = &expect_scales(checkpoint, module + ".scales", {Shape{packed.groups, packed.out_features}});
  packed.zeros = &expect(checkpoint, module + ".qzeros", DType::kI32, {packed.groups, words});
  packed.scheme.scale_dtype = packed.scales->view.dtype;
  return packed;
}

PackedTensors open_gptq(const Checkpoint& checkpoint, const std::string& module, const QuantScheme& scheme) {
  PackedTensors packed;
  packed.scheme = scheme;
  const std::string codes_name = module + kTransposedSuffix;
  const StoredTensor& codes = find_tensor(checkpoint, codes_name);
  const Shape& shape = codes.view.shape;
  if (shape.rank() != 2 || shape[0] < 1 || shape[0] >= (std::int64_t{1} << 26) ||
      shape[0] * 32 % scheme.bits != 0)
    bad_tensor(checkpoint, codes_name,
               fmt::format("has shape {}, expected [in*{}/32, out]", shape.text(), scheme.bits));
  packed.in_features = shape[0] * 32 / scheme.bits;
  packed.out_features = shape[1];
  check_packed_size(checkpoint, codes_name, packed.out_features, packed.in_features);
  packed.groups = groups_of_packed(checkpoint, codes_name, scheme, packed.in_features);
  packed.codes = &expect(checkpoint, codes_name, DType::kI32, shape);
  packed.scales = &expect_scales(checkpoint, module + ".scales", {Shape{packed.groups, packed.out_features}});
  packed.zeros = &expect(checkpoint, module + ".qzeros", DType::kI32,
                         {packed.groups, (packed.out_features * scheme.bits + 31) / 32});
  packed.scheme.scale_dtype = packed.scales->view.dtype;
  return packed;
}

std::vector<std::uint8_t> read_gptq_zeros(const Checkpoint& checkpoint, const PackedTensors& packed,
                                          std::span<const std::uint32_t> words) {
  const bool less_one = packed.format == PackedFormat::kGptq;
  if (less_one && !packed.by_gptqmodel &&
      has_gptq_v1_borrow(words, packed.out_features, packed.groups, packed.scheme.bits))
    bad_tensor(checkpoint, packed.zeros->name,
               fmt::format("holds a zero of {0}, stored less one: programs disagree whether that is {0} or 0",
                           packed.scheme.code_count()),
               "make the checkpoint again with checkpoint_format gptq_v2");
  return unpack_gptq_zeros(words, packed.out_features, packed.groups, packed.scheme.bits,
                           less_one ? GptqZeros::kLessOne : GptqZeros::kPlain);
}

// Signed bytes as unsigned codes.
std::vector<std::uint8_t> read_signed(const Checkpoint& checkpoint, const StoredTensor& tensor,
                                      const QuantScheme& scheme) {
  const auto values = copy_elements<std::int8_t>(checkpoint, tensor);
  std::vector<std::uint8_t> codes(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const int code = values[i] + scheme.middle();
    if (code < 0 || code >= scheme.code_count())
      bad_tensor(checkpoint, tensor.name,
                 fmt::format("holds {}, which {} bits do not", static_cast<int>(values[i]), scheme.bits));
    codes[i] = static_cast<std::uint8_t>(code);
  }
  return codes;
}

// E4M3 as its bits.
std::vector<std::uint8_t> read_float8(const Checkpoint& checkpoint, const StoredTensor& tensor,
                                      bool allow_nonfinite) {
  auto codes = copy_elements<std::uint8_t>(checkpoint, tensor);
  const auto nan =
      std::find_if(codes.begin(), codes.end(), [](std::uint8_t code) { return (code & 0x7f) == 0x7f; });
  if (nan != codes.end() && !allow_nonfinite) {
    const auto index = nan - codes.begin();
    const std::int64_t columns = tensor.view.cols();
    bad_tensor(checkpoint, tensor.name,
               fmt::format("holds NaN at row {}, column {}", index / columns, index % columns),
               "get the checkpoint again");
  }
  return codes;
}

std::vector<std::uint8_t> read_zeros(const Checkpoint& checkpoint, const PackedTensors& packed) {
  if (packed.zeros == nullptr)
    return std::vector<std::uint8_t>(static_cast<std::size_t>(packed.out_features * packed.groups),
                                     static_cast<std::uint8_t>(packed.scheme.middle()));
  if (packed.bytes) return read_signed(checkpoint, *packed.zeros, packed.scheme);
  const auto words = copy_elements<std::uint32_t>(checkpoint, *packed.zeros);
  if (packed.format == PackedFormat::kAwqGemm)
    return unpack_awq_gemm(words, packed.out_features, packed.groups);
  if (packed.format != PackedFormat::kCompressedTensors) return read_gptq_zeros(checkpoint, packed, words);
  // Words run along the rows, one stream per group: transposed, that is the layout of the codes.
  const std::int64_t per_column = packed.zeros->view.shape[0];
  const auto streams = transposed<std::uint32_t>(words, per_column, packed.groups);
  const auto by_group = unpack_bit_stream(streams, packed.groups, packed.out_features, packed.scheme.bits);
  return transposed<std::uint8_t>(by_group, packed.groups, packed.out_features);
}

std::vector<float> read_scales(const Checkpoint& checkpoint, const PackedTensors& packed,
                               bool allow_nonfinite) {
  std::vector<float> scales = read_finite(checkpoint, *packed.scales, allow_nonfinite);
  if (packed.format != PackedFormat::kCompressedTensors && packed.format != PackedFormat::kModelopt)
    return transposed<float>(scales, packed.groups, packed.out_features);
  if (packed.scheme.granularity == Granularity::kTensor)
    scales.assign(static_cast<std::size_t>(packed.out_features), scales.at(0));
  if (packed.scheme.granularity == Granularity::kBlock) {
    std::vector<float> rows;
    for (std::int64_t n = 0; n < packed.out_features; ++n) {
      const auto first = scales.begin() + n / kFloat8Block * packed.groups;
      rows.insert(rows.end(), first, first + packed.groups);
    }
    return rows;
  }
  return scales;
}

float read_input_scale(const Checkpoint& checkpoint, const PackedTensors& packed) {
  if (packed.input_scale == nullptr) return 0;
  const float scale = checkpoint.read_float32(*packed.input_scale).at(0);
  if (!(scale > 0 && all_finite({&scale, 1})))
    bad_tensor(checkpoint, packed.input_scale->name, fmt::format("is {}; a scale is above 0", scale));
  // What is stored is of use where its reciprocal is, which is what the other containers say.
  if (packed.scheme.rounds_inputs_in_float_groups())
    expect_reciprocal(checkpoint, *packed.input_scale, scale);
  return scale;
}

std::vector<std::uint8_t> read_codes(const Checkpoint& checkpoint, const PackedTensors& packed,
                                     bool allow_nonfinite) {
  if (packed.scheme.weight_type == WeightType::kFloat4) return read_code_pairs(checkpoint, *packed.codes);
  if (packed.bytes)
    return packed.scheme.weight_type == WeightType::kFloat8
               ? read_float8(checkpoint, *packed.codes, allow_nonfinite)
               : read_signed(checkpoint, *packed.codes, packed.scheme);
  const auto words = copy_elements<std::uint32_t>(checkpoint, *packed.codes);
  const std::int64_t out = packed.out_features, in = packed.in_features;
  if (packed.format == PackedFormat::kAwqGemm) return unpack_awq_gemm(words, out, in);
  if (packed.format == PackedFormat::kCompressedTensors)
    return unpack_bit_stream(words, out, in, packed.scheme.bits);
  return unpack_gptq(words, out, in, packed.scheme.bits);
}

}  // namespace

QuantizedMatrix read_packed(const Checkpoint& checkpoint, const PackedTensors& packed, bool allow_nonfinite) {
  QuantizedMatrix matrix;
  matrix.scheme = packed.scheme;
  matrix.out_features = packed.out_features;
  matrix.in_features = packed.in_features;
  matrix.codes = read_codes(checkpoint, packed, allow_nonfinite);
  matrix.global_scale = read_global_scale(checkpoint, packed);
  matrix.global_form = global_form(packed);
  matrix.scales = packed.scheme.scale_form() == ScaleForm::kNumber
                      ? read_scales(checkpoint, packed, allow_nonfinite)
                      : read_group_scales(checkpoint, packed, matrix.global_scale);
  matrix.zeros = read_zeros(checkpoint, packed);
  if (packed.reordered) {
    matrix.column_group = packed.column_group;
  } else if (!packed.column_group.empty()) {
    rename_groups(packed, matrix.scales);
    rename_groups(packed, matrix.zeros);
  }
  matrix.input_scale = read_input_scale(checkpoint, packed);
  if (matrix.scheme.symmetric &&
      std::any_of(matrix.zeros.begin(), matrix.zeros.end(),
                  [&](std::uint8_t zero) { return zero != matrix.scheme.middle(); }))
    bad_tensor(checkpoint, packed.zeros->name,
               fmt::format("holds a zero other than {}, although quantization_config says symmetric",
                           matrix.scheme.middle()));
  return matrix;
}

namespace {

bool ends_with(const std::string& text, std::string_view suffix) {
  return std::string_view(text).ends_with(suffix);
}

// What a format calls the group of each column; AWQ has none.
std::string_view index_suffix(PackedFormat format) {
  return format == PackedFormat::kCompressedTensors                              ? ".weight_g_idx"
         : format == PackedFormat::kAwqGemm || format == PackedFormat::kModelopt ? ""
                                                                                 : ".g_idx";
}

// Tensors beside the packed words that change what they mean.
void refuse_companions(const Checkpoint& checkpoint, const std::string& module, PackedFormat format,
                       bool two_levels) {
  for (const char* global : {kGlobalSuffix, kFactorSuffix})
    if (!two_levels && checkpoint.find(module + global) != nullptr)
      unsupported_tensor(checkpoint, module + global,
                         "is stored, although quantization_config says no weights of two levels of scales");
  static constexpr std::pair<const char*, const char*> kRefused[] = {
      {".pre_quant_scale", "inputs that are scaled before they meet the weight are not supported"},
      {".svdquant_lora_a", "a weight of low rank beside the codes is not supported"},
      {".input_zero_point", "asymmetric quantization of activations is not supported"},
  };
  for (const auto& [suffix, message] : kRefused)
    if (checkpoint.find(module + suffix) != nullptr) unsupported_tensor(checkpoint, module + suffix, message);
  for (const std::string_view suffix : {".weight_g_idx", ".g_idx"}) {
    const std::string name = module + std::string(suffix);
    if (suffix != index_suffix(format) && checkpoint.find(name) != nullptr)
      unsupported_tensor(checkpoint, name,
                         fmt::format("has no meaning in a checkpoint of format {}", format_name(format)));
  }
}

}  // namespace

const char* packed_suffix(PackedFormat format) {
  return format == PackedFormat::kCompressedTensors ? kPackedSuffix
         : format == PackedFormat::kModelopt        ? kDenseSuffix
                                                    : kTransposedSuffix;
}

bool codes_have_dense_names(PackedFormat format) {
  return format == PackedFormat::kCompressedTensors || format == PackedFormat::kModelopt;
}

// The module whose codes the tensor holds, or nothing where it holds none.
std::optional<std::string> module_of_codes(const StoredTensor& tensor, PackedFormat format) {
  const auto before = [&](std::string_view suffix) {
    return tensor.name.substr(0, tensor.name.size() - suffix.size());
  };
  if (format == PackedFormat::kNone) return std::nullopt;
  const bool named_dense = ends_with(tensor.name, kDenseSuffix);
  if (!named_dense && ends_with(tensor.name, packed_suffix(format))) return before(packed_suffix(format));
  if (named_dense && codes_have_dense_names(format) && holds_codes(&tensor, format))
    return before(kDenseSuffix);
  return std::nullopt;
}

namespace {

// The calibrated scale of inputs, where the scheme has one and nowhere else; W4A16_NVFP4 may have one for
// whoever rounds inputs, which is looked at and passed over.
void open_input_scale(const Checkpoint& checkpoint, const std::string& module, InputScale stored,
                      PackedTensors& packed) {
  const bool compressed_global = packed.scheme.rounds_inputs_in_float_groups() &&
                                 packed.scheme.calibrates_inputs() &&
                                 packed.format == PackedFormat::kCompressedTensors;
  const std::string name = module + (compressed_global ? kInputGlobalSuffix : kInputScaleSuffix),
                    other = module + (compressed_global ? kInputScaleSuffix : kInputGlobalSuffix);
  const bool there = checkpoint.find(name) != nullptr;
  if (packed.scheme.calibrates_inputs() || (stored == InputScale::kPerhaps && there))
    packed.input_scale = &expect_scales(checkpoint, name, {Shape{1}, Shape{}, Shape{1, 1}});
  for (const std::string& unread : {packed.input_scale == nullptr ? name : other, other})
    if (checkpoint.find(unread) != nullptr)
      bad_tensor(checkpoint, unread, "is stored, although quantization_config asks for no such scale");
}

}  // namespace

PackedTensors open_packed(const Checkpoint& checkpoint, const QuantizationConfig& quantization,
                          const std::string& module) {
  const PackedFormat format = quantization.format();
  const auto scheme = quantization.scheme_of(module);
  if (!scheme)
    bad_tensor(checkpoint, module + packed_suffix(format),
               "is stored, but no group of quantization_config names its module");
  refuse_companions(checkpoint, module, format, scheme->scale_form() == ScaleForm::kTwoLevel);
  const bool compressed = format == PackedFormat::kCompressedTensors;
  const bool bytes =
      format == PackedFormat::kModelopt || (compressed && checkpoint.find(module + kPackedSuffix) == nullptr);
  PackedTensors packed = format == PackedFormat::kAwqGemm ? open_awq(checkpoint, module, *scheme)
                         : scheme->weight_type == WeightType::kFloat4
                             ? open_packed_float4(checkpoint, module, *scheme, format)
                         : bytes      ? open_packed_bytes(checkpoint, module, *scheme, format)
                         : compressed ? open_compressed(checkpoint, module, *scheme)
                                      : open_gptq(checkpoint, module, *scheme);
  packed.format = format;
  open_input_scale(checkpoint, module, quantization.input_scale_of(module), packed);
  const std::string index = module + std::string(index_suffix(format));
  if (index != module && checkpoint.find(index) != nullptr) read_group_index(checkpoint, index, packed);
  packed.by_gptqmodel = quantization.by_gptqmodel();
  return packed;
}

}  // namespace llmq

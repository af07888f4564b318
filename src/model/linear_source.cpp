#include "model/linear_source.h"

#include <algorithm>

#include "base/error.h"
#include "io/codes/gguf_scales.h"
#include "io/gguf_rows.h"
#include "model/packed/packed_bytes.h"
#include "model/packed/packed_tensors.h"
#include "model/packed/quantization_config.h"
#include "model/tensor_reading.h"
#include "tensor/ggml_codes.h"

namespace llmq {

struct LinearSource::State {
  Checkpoint checkpoint;
  QuantizationConfig quantization;
  std::string config_file;
};

const char* format_name(PackedFormat format) {
  switch (format) {
    case PackedFormat::kNone:
      return "dense";
    case PackedFormat::kCompressedTensors:
      return "compressed-tensors";
    case PackedFormat::kAwqGemm:
      return "awq";
    case PackedFormat::kGptq:
      return "gptq";
    case PackedFormat::kGptqV2:
      return "gptq_v2";
    case PackedFormat::kModelopt:
      return "modelopt";
  }
  return "?";
}

LinearSource LinearSource::open(const Checkpoint& checkpoint) {
  const std::string file = checkpoint.quantization_file().string();
  auto state =
      std::make_shared<State>(State{checkpoint, QuantizationConfig::read(checkpoint.config(), file), file});
  const PackedFormat format = state->quantization.format();
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const bool compressed = tensor.name.ends_with(kPackedSuffix),
               transposed_words = tensor.name.ends_with(kTransposedSuffix);
    if ((compressed && format != PackedFormat::kCompressedTensors) ||
        (transposed_words && (format == PackedFormat::kNone || codes_have_dense_names(format))))
      bad_tensor(checkpoint, tensor.name,
                 fmt::format("is a packed weight, but quantization_config says {}", format_name(format)));
  }
  LinearSource source;
  source.state_ = std::move(state);
  return source;
}

PackedFormat LinearSource::format() const { return state_->quantization.format(); }
std::optional<KvCacheType> LinearSource::kv_cache() const { return state_->quantization.kv_cache(); }
const Checkpoint& LinearSource::checkpoint() const { return state_->checkpoint; }

bool LinearSource::is_packed(const std::string& module) const {
  if (format() == PackedFormat::kNone) return false;
  if (codes_have_dense_names(format()) && holds_codes(checkpoint().find(module + kDenseSuffix), format()))
    return true;
  return format() != PackedFormat::kModelopt &&
         checkpoint().find(module + packed_suffix(format())) != nullptr;
}

std::vector<std::string> LinearSource::packed_modules() const {
  std::vector<std::string> names;
  for (const StoredTensor& tensor : checkpoint().tensors())
    if (std::optional<std::string> module = module_of_codes(tensor, format()))
      names.push_back(std::move(*module));
  return names;
}

PackedShape LinearSource::packed_shape(const std::string& module) const {
  const PackedTensors packed = open_packed(checkpoint(), state_->quantization, module);
  return {packed.scheme, packed.out_features, packed.in_features, packed.reordered};
}

QuantizedMatrix LinearSource::quantized(const std::string& module) const {
  return read_packed(checkpoint(), open_packed(checkpoint(), state_->quantization, module), false);
}

std::vector<std::string> LinearSource::check_packed(const LinearSpec& linear) const {
  const PackedTensors packed = open_packed(checkpoint(), state_->quantization, linear.module);
  if (packed.out_features != linear.out_features || packed.in_features != linear.in_features)
    bad_tensor(checkpoint(), packed.codes->name,
               fmt::format("holds a weight of shape [{}, {}], but {} says [{}, {}]", packed.out_features,
                           packed.in_features, state_->config_file, linear.out_features, linear.in_features));
  std::vector<std::string> names;
  for (const StoredTensor* tensor : {packed.codes, packed.scales, packed.zeros, packed.shape, packed.index,
                                     packed.input_scale, packed.global_scale})
    if (tensor != nullptr) names.push_back(tensor->name);
  return names;
}

void LinearSource::check_dense(const LinearSpec& linear) const {
  if (format() != PackedFormat::kCompressedTensors || !state_->quantization.scheme_of(linear.module)) return;
  bad_tensor(checkpoint(), linear.module + kPackedSuffix,
             "is missing, although quantization_config says that this module is quantized",
             "name the module under ignore if it is stored dense");
}

std::vector<std::string> LinearSource::tensors_of(const LinearSpec& linear) const {
  std::vector<std::string> names;
  if (checkpoint().find(linear.weight.tensor) != nullptr) names.push_back(linear.weight.tensor);
  for (const char* suffix : kPackedSuffixes)
    if (checkpoint().find(linear.module + suffix) != nullptr) names.push_back(linear.module + suffix);
  return names;
}

LinearSource::ReadBytes LinearSource::bytes_to_read(const LinearSpec& linear) const {
  constexpr std::uint64_t kIndexLooks = 3;  // for the scheme, for the shapes, with the codes
  ReadBytes bytes;
  for (const std::string& name : tensors_of(linear)) {
    const StoredTensor& tensor = checkpoint().at(name);
    const std::uint64_t once = Checkpoint::bytes_to_read(tensor);
    bytes.all += once * (name.ends_with("g_idx") && !Checkpoint::is_kept(tensor) ? kIndexLooks : 1);
    bytes.kept += Checkpoint::bytes_kept(tensor);
  }
  return bytes;
}

void LinearSource::read_ahead(const LinearSpec& linear) const {
  for (const std::string& name : tensors_of(linear))
    if (const StoredTensor& tensor = checkpoint().at(name); !Checkpoint::is_kept(tensor))
      checkpoint().read_ahead(tensor);
}

ZeroedNumbers<float> LinearSource::weight(const LinearSpec& linear, ThreadPool& pool,
                                          bool allow_nonfinite) const {
  if (!is_packed(linear.module)) {
    const StoredTensor& tensor = find_tensor(checkpoint(), linear.weight.tensor);
    if (!(tensor.view.shape == Shape{linear.out_features, linear.in_features}))
      bad_tensor(checkpoint(), tensor.name,
                 fmt::format("has shape {}, expected [{}, {}]", tensor.view.shape.text(), linear.out_features,
                             linear.in_features));
    return read_finite(checkpoint(), tensor, allow_nonfinite, pool);
  }
  check_packed(linear);
  const QuantizedMatrix matrix = read_packed(
      checkpoint(), open_packed(checkpoint(), state_->quantization, linear.module), allow_nonfinite);
  ZeroedNumbers<float> values(matrix.codes.size());
  dequantize(matrix, values, pool);
  return values;
}

std::optional<std::vector<float>> LinearSource::bias(const LinearSpec& linear, bool allow_nonfinite) const {
  if (!linear.has_bias()) return std::nullopt;
  return tensor(linear.bias.tensor, allow_nonfinite);
}

std::vector<float> LinearSource::tensor(const std::string& name, bool allow_nonfinite) const {
  return read_finite(checkpoint(), find_tensor(checkpoint(), name), allow_nonfinite);
}

const StoredTensor& LinearSource::finite(const std::string& name, const Checkpoint::EachBand& see) const {
  const StoredTensor& tensor = find_tensor(checkpoint(), name);
  scan_finite(checkpoint(), tensor, see);
  return tensor;
}

std::optional<HeldTensor> LinearSource::stored(const LinearSpec& linear, bool allow_nonfinite) const {
  if (is_packed(linear.module) || checkpoint().is_gguf()) return std::nullopt;
  const StoredTensor& tensor = find_tensor(checkpoint(), linear.weight.tensor);
  if (!tensor.in_order()) return std::nullopt;
  const DType dtype = tensor.view.dtype;
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16) return std::nullopt;
  if (reinterpret_cast<std::uintptr_t>(tensor.view.pointer) %
          static_cast<std::uintptr_t>(element_bytes(dtype)) !=
      0)
    return std::nullopt;
  HeldTensor held{tensor.view, checkpoint().hold(tensor)};  // before the scan, which would read it once more
  if (!allow_nonfinite) scan_finite(checkpoint(), tensor);
  return held;
}

std::optional<QuantizedMatrix> LinearSource::block_codes(const std::string& name) const {
  const StoredTensor& tensor = find_tensor(checkpoint(), name);
  const TensorView& view = tensor.view;
  if (!checkpoint().is_gguf()) return checkpoint().read_codes(tensor);
  if (!has_codes(view.dtype) || view.shape.rank() != 2) return std::nullopt;
  if (tensor.pieces && !tensor.pieces->front().part.only_rows()) return std::nullopt;
  const std::int64_t rows = view.shape[0];
  const std::uint64_t row_bytes = view.bytes() / static_cast<std::uint64_t>(std::max<std::int64_t>(rows, 1));
  const Lease lease = checkpoint().hold(tensor);
  const float scale = gguf_scale(tensor);
  if (scale != 1 && view.dtype != DType::kNVFP4) return std::nullopt;
  QuantizedMatrix matrix = matrix_of_blocks(view.dtype, view.cols(), scale);
  matrix.codes.reserve(static_cast<std::size_t>(view.shape.elements()));
  std::vector<std::int64_t> stored_rows(static_cast<std::size_t>(tensor.pieces ? rows : 0));
  for (std::int64_t row = 0; row < std::ssize(stored_rows); ++row)
    stored_rows[static_cast<std::size_t>(tensor.pieces->front().part.rows(row))] = row;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t from = tensor.pieces                ? stored_rows[static_cast<std::size_t>(row)]
                              : tensor.permuted_heads == 0 ? row
                                                           : source_row(row, rows, tensor.permuted_heads);
    append_block_row(view.dtype, view.as<const std::byte>() + static_cast<std::uint64_t>(from) * row_bytes,
                     matrix);
  }
  if (!all_finite(matrix.scales) || !all_finite(matrix.minima))
    read_finite(checkpoint(), tensor, false);  // which says where
  return matrix;
}

std::string kv_scale_name(const BlockSpec& block, std::string_view which) {
  return fmt::format("{}.self_attn.{}", block.prefix, which);
}

}  // namespace llmq

#include "export/formats/mlx.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "export/formats/output_format.h"
#include "io/codes/mlx.h"
#include "tensor/packed_layout.h"
#include "tensor/stored_float.h"

namespace llmq {
namespace {

std::vector<TensorDeclaration> mlx_tensors(const PlannedModule& m) {
  const std::int64_t groups = m.in_features / m.scheme.group_of(m.in_features);
  return {{m.module + ".weight", DType::kU32, {m.out_features, m.in_features * m.scheme.bits / 32}},
          {m.module + ".scales", m.scheme.scale_dtype, {m.out_features, groups}},
          {m.module + ".biases", m.scheme.scale_dtype, {m.out_features, groups}}};
}

std::vector<PackedTensor> packed_tensors(const PlannedModule& m, std::span<const std::uint8_t> codes,
                                         std::span<const float> scales, std::span<const float> biases) {
  std::vector<PackedTensor> tensors;
  for (TensorDeclaration& declaration : mlx_tensors(m)) tensors.push_back({declaration, {}});
  tensors[0].bytes = word_bytes(pack_bit_stream(codes, m.out_features, m.in_features, m.scheme.bits));
  tensors[1].bytes = stored_floats(scales, m.scheme.scale_dtype);
  tensors[2].bytes = stored_floats(biases, m.scheme.scale_dtype);
  return tensors;
}

// Codes of another container have integers for zeros, and get the numbers that stand for them here.
std::vector<PackedTensor> pack_mlx(const PlannedModule& m, const QuantizedMatrix& matrix) {
  if (matrix.minima.empty()) {
    QuantizedMatrix with_addends = matrix;
    store_addends(with_addends);
    return pack_mlx(m, with_addends);
  }
  std::vector<float> biases;
  for (const float minimum : matrix.minima) biases.push_back(minimum == 0 ? 0.0f : -minimum);
  return packed_tensors(m, matrix.codes, matrix.scales, biases);
}

Json affine_form(const QuantScheme& scheme) {
  return Json::object({{"group_size", group_size_of(scheme)}, {"bits", scheme.bits}, {"mode", "affine"}});
}

// Linears that are dense are those without scales: nothing is said of them.
Json mlx_config(const ListedModules& listed) {
  const Json usual = affine_form(listed.packed.front().scheme);
  Json config = usual;
  for (const PlannedModule& m : listed.packed)
    if (Json own = affine_form(m.scheme); !(own == usual)) config[m.module] = std::move(own);
  return config;
}

std::optional<std::string> mlx_refusal_of(const PlannedModule& m, const PlannedModule&) {
  const QuantScheme& scheme = m.scheme;
  if (scheme.activation_bits != 16) return "format mlx stores no quantized activations";
  if (scheme.weight_type != WeightType::kInteger) return "format mlx stores integer codes alone here";
  if (scheme.bits == 7) return "format mlx stores codes of 2, 3, 4, 5, 6 and 8 bits, not of 7";
  const int group = group_size_of(scheme);
  if (group != 32 && group != 64 && group != 128)
    return fmt::format("format mlx has a scale for each 32, 64 or 128 columns, and {} is {}", m.module,
                       scheme.text());
  if (m.column_groups)
    return "format mlx has no group index, and columns of one group do not lie side by side";
  if (m.in_features % group != 0)
    return fmt::format("group size {} does not divide the {} input features", group, m.in_features);
  return std::nullopt;
}

// One group: its codes; its scale and bias before they are rounded.
std::pair<float, float> quantize_group(std::span<const float> weight, float top, std::uint8_t* codes) {
  constexpr float kLeast = 1e-7f;
  const auto [low, high] = std::minmax_element(weight.begin(), weight.end());
  const bool below = std::fabs(*low) > std::fabs(*high);
  float scale = std::max((*high - *low) / top, kLeast);
  if (!below) scale = -scale;
  const float edge = below ? *low : *high, steps = std::rint(edge / scale);
  float bias = 0;
  if (steps != 0) scale = edge / steps, bias = edge;
  for (std::size_t k = 0; k < weight.size(); ++k)
    codes[k] =
        static_cast<std::uint8_t>(std::min(std::max(std::rint((weight[k] - bias) / scale), 0.0f), top));
  return {scale, bias};
}

}  // namespace

std::string stored_format(const Checkpoint& checkpoint, const std::string& packed) {
  return checkpoint.is_gguf() ? kGgufFormat : is_made_of_codes(checkpoint) ? kMlxFormat : packed;
}

std::vector<PlannedModule> mlx_modules(const Checkpoint& checkpoint, const ModelSpec& spec,
                                       const std::string& scheme) {
  const SchemeRequest asked = parse_scheme(scheme);
  if (asked.symmetric.value_or(false) && asked.weight_type == WeightType::kInteger)
    fail(ErrorKind::kUnsupported, {"mlx_lm.convert rounds between the ends of each group, not about zero",
                                   {},
                                   "--dtype " + scheme,
                                   "leave out _sym"});
  PlannedModule module;
  module.scheme.bits = asked.bits;
  module.scheme.activation_bits = asked.activation_bits;
  module.scheme.weight_type = asked.weight_type;
  module.scheme.granularity = asked.granularity.value_or(Granularity::kGroup);
  module.scheme.group_size = asked.group_size.value_or(64);
  module.scheme.zero_form = ZeroForm::kAddend;
  std::vector<PlannedModule> modules;
  const auto add = [&](const std::string& name, const std::string& tensor) {
    const StoredTensor& weight = checkpoint.at(tensor);
    module.module = name;
    module.out_features = weight.view.shape[0], module.in_features = weight.view.shape[1];
    const DType dtype = weight.view.dtype;
    module.scheme.scale_dtype = dtype == DType::kF32 || dtype == DType::kF16 ? dtype : DType::kBF16;
    if (module.scheme.granularity != Granularity::kGroup ||
        module.in_features % module.scheme.group_size == 0)
      modules.push_back(module);
  };
  add("model.embed_tokens", spec.embedding.tensor);
  for (const BlockSpec& block : spec.blocks)
    for (const LinearSpec& linear : block.linears) add(linear.module, linear.weight.tensor);
  if (!spec.tied_head) add(spec.head_module, spec.head);
  return modules;
}

std::vector<PackedTensor> quantize_mlx(const PlannedModule& m, std::span<const float> weight) {
  const auto group = static_cast<std::size_t>(m.scheme.group_size);
  const auto top = static_cast<float>(m.scheme.code_count() - 1);
  std::vector<std::uint8_t> codes(weight.size());
  std::vector<float> scales, biases;
  for (std::size_t first = 0; first < weight.size(); first += group) {
    const auto [scale, bias] = quantize_group(weight.subspan(first, group), top, codes.data() + first);
    scales.push_back(scale), biases.push_back(bias);
  }
  return packed_tensors(m, codes, scales, biases);
}

const PackedFormatRow kMlxFormatRow = {.name = kMlxFormat,
                                       .declare = mlx_tensors,
                                       .pack = pack_mlx,
                                       .config = mlx_config,
                                       .refusal = mlx_refusal_of,
                                       .packing_bytes = 3,
                                       .zero_form = ZeroForm::kAddend,
                                       .tower_refusal = "mlx-lm reads a decoder alone",
                                       .model_refusal = mlx_refusal,
                                       .made_for = {"mlx", "quantization", "model.embed_tokens.weight"}};

}  // namespace llmq

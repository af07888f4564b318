// compressed-tensors "pack-quantized": W2..W8 A16, per group or per channel, symmetric or not; and the config
// of every format of the family: a byte a code (export/formats/compressed_codes.h) where inputs are quantized
// too, floats in groups (export/formats/compressed_floats.h).
//
//   <module>.weight_packed      I32 [out, ceil(in*b/32)]      row n: a little-endian stream of b-bit fields,
//                                                             field j = code(n, j)
//   <module>.weight_scale       scale dtype [out, groups]
//   <module>.weight_zero_point  I32 [ceil(out*b/32), groups]  asymmetric only; column g: the same stream down
//                                                             the rows
//   <module>.weight_shape       I64 [2] = out, in
//
// Sources: compressed_tensors 0.20 compressors/pack_quantized, quantization/{quant_config,quant_args}.py;
// docs/reference/formats.md.
#include <algorithm>
#include <array>
#include <set>

#include "base/checked.h"
#include "base/error.h"
#include "export/formats/compressed_codes.h"
#include "export/formats/compressed_floats.h"
#include "export/formats/packed_formats.h"
#include "model/model_spec.h"
#include "tensor/packed_layout.h"

namespace llmq {
namespace {

std::int64_t stream_words(std::int64_t count, int bits) {
  return static_cast<std::int64_t>(
      ceil_div(static_cast<std::uint64_t>(count) * static_cast<std::uint64_t>(bits), 32));
}

bool is_float4(const QuantScheme& scheme) { return scheme.weight_type == WeightType::kFloat4; }
bool is_packed(const QuantScheme& scheme) { return compressed_format(scheme) == "pack-quantized"; }

std::vector<TensorDeclaration> compressed_tensors(const PlannedModule& m) {
  const QuantScheme& scheme = m.scheme;
  if (is_float4(scheme)) return declare_float4(m);
  if (!is_packed(scheme)) return declare_codes(m);
  const std::int64_t groups = m.in_features / scheme.group_of(m.in_features);
  std::vector<TensorDeclaration> tensors = {
      {m.module + ".weight_packed", DType::kI32, {m.out_features, stream_words(m.in_features, scheme.bits)}},
      {m.module + ".weight_scale", scheme.scale_dtype, {m.out_features, groups}},
      {m.module + ".weight_shape", DType::kI64, {2}}};
  if (!scheme.symmetric)
    tensors.push_back(
        {m.module + ".weight_zero_point", DType::kI32, {stream_words(m.out_features, scheme.bits), groups}});
  if (m.column_groups) tensors.push_back({m.module + ".weight_g_idx", DType::kI32, {m.in_features}});
  return tensors;
}

std::vector<std::byte> packed_zeros(const QuantizedMatrix& matrix) {
  const std::int64_t out = matrix.out_features, groups = matrix.groups();
  const std::vector<std::uint8_t> by_group =
      transposed(std::span<const std::uint8_t>(matrix.zeros), out, groups);
  const std::vector<std::uint32_t> words = pack_bit_stream(by_group, groups, out, matrix.scheme.bits);
  return word_bytes(
      transposed(std::span<const std::uint32_t>(words), groups, stream_words(out, matrix.scheme.bits)));
}

std::vector<PackedTensor> pack_compressed(const PlannedModule& module, const QuantizedMatrix& matrix) {
  if (is_float4(module.scheme)) return pack_float4(module, matrix);
  if (!is_packed(module.scheme)) return pack_codes(module, matrix);
  const std::array<std::int64_t, 2> shape = {matrix.out_features, matrix.in_features};
  const auto shape_bytes = std::as_bytes(std::span(shape));
  std::vector<PackedTensor> tensors;
  for (TensorDeclaration& declaration : compressed_tensors(module)) tensors.push_back({declaration, {}});
  tensors[0].bytes =
      word_bytes(pack_bit_stream(matrix.codes, matrix.out_features, matrix.in_features, matrix.scheme.bits));
  tensors[1].bytes = scale_bytes(matrix.scales, matrix.scheme.scale_dtype);
  tensors[2].bytes.assign(shape_bytes.begin(), shape_bytes.end());
  if (!matrix.scheme.symmetric) tensors[3].bytes = packed_zeros(matrix);
  if (module.column_groups) tensors.back().bytes = group_index_bytes(matrix);
  return tensors;
}

// Modules share a group of the config when everything that is written of their schemes is equal.
bool same_group(const PlannedModule& m, const PlannedModule& other) {
  const QuantScheme &a = m.scheme, &b = other.scheme;
  const bool grouped = a.granularity == Granularity::kGroup;
  return a.bits == b.bits && a.symmetric == b.symmetric && a.granularity == b.granularity &&
         a.weight_type == b.weight_type && a.activation_bits == b.activation_bits &&
         a.activation_scale == b.activation_scale && (!grouped || a.group_size == b.group_size) &&
         m.column_groups == other.column_groups;
}

const char* strategy(const QuantScheme& scheme) {
  switch (scheme.granularity) {
    case Granularity::kGroup:
      return "group";
    case Granularity::kChannel:
      return "channel";
    case Granularity::kTensor:
      return "tensor";
    case Granularity::kBlock:
      return "block";
  }
  return "?";
}

Json weights_config(const PlannedModule& m) {
  const QuantScheme& scheme = m.scheme;
  if (scheme.scale_form() != ScaleForm::kNumber) return float_group_arguments(scheme, false).to_json();
  const bool grouped = scheme.granularity == Granularity::kGroup,
             blocks = scheme.granularity == Granularity::kBlock;
  QuantizationArguments arguments;
  if (m.column_groups) arguments.column_order = "group";
  if (blocks) arguments.block_structure = Json::array({kFloat8Block, kFloat8Block});
  if (grouped) arguments.group_size = scheme.group_size;
  arguments.bits = scheme.bits;
  arguments.strategy = strategy(scheme);
  arguments.symmetric = scheme.symmetric;
  arguments.is_float = scheme.weight_type != WeightType::kInteger;
  return arguments.to_json();
}

// One config group a scheme. A single scheme targets the class; several name their modules one by one, and
// experts of a layer as one, so that nothing depends on which target wins.
Json compressed_config(const ListedModules& listed) {
  std::vector<PlannedModule> distinct;
  std::vector<Json> targets;
  const std::set<std::string> uniform = uniform_experts(listed, same_group), linears = listed_linears(listed);
  std::set<std::string> said;
  for (const PlannedModule& m : listed.packed) {
    const auto found = std::find_if(distinct.begin(), distinct.end(),
                                    [&](const PlannedModule& other) { return same_group(m, other); });
    const std::size_t index = static_cast<std::size_t>(found - distinct.begin());
    if (found == distinct.end()) {
      distinct.push_back(m);
      targets.push_back(Json::array());
    }
    const std::string experts = experts_of(m.module);
    if (const bool tower = listed.carried != nullptr && listed.carried->carries(m.module); tower) {
      if (const std::string name = tower_expression(m.module); said.insert(name).second)
        targets[index].push_back("re:" + name);
    } else if (!uniform.contains(experts))
      targets[index].push_back(compressed_target(m.module, listed.wrapper));
    else if (said.insert(experts).second)
      targets[index].push_back("re:" + experts_expression(experts, listed.wrapper));
    if (const auto values = missing_values(m.module, linears))
      targets[index].push_back(compressed_target(*values, listed.wrapper));
  }
  std::string_view format = compressed_format(distinct.front().scheme);
  Json groups = Json::object();
  for (std::size_t i = 0; i < distinct.size(); ++i) {
    const std::string_view own = compressed_format(distinct[i].scheme);
    if (own != format) format = "mixed-precision";
    groups[fmt::format("group_{}", i)] =
        Json::object({{"format", own},
                      {"input_activations", input_config(distinct[i].scheme)},
                      {"output_activations", nullptr},
                      {"targets", distinct.size() == 1 ? Json::array({"Linear"}) : targets[i]},
                      {"weights", weights_config(distinct[i])}});
  }
  return Json::object({{"config_groups", std::move(groups)},
                       {"format", format},
                       {"global_compression_ratio", nullptr},
                       {"ignore", text_list(compressed_ignore(listed))},
                       {"kv_cache_scheme", nullptr},
                       {"provider", "llmq"},
                       {"quant_method", "compressed-tensors"},
                       {"quantization_status", "compressed"},
                       {"sparsity_config", Json::object()},
                       {"transform_config", Json::object()},
                       {"version", "0.20.0"}});
}

// One static scale per layer for keys and one for values.
Json kv_cache_scheme(KvCacheType type) {
  QuantizationArguments arguments;
  arguments.is_float = type == KvCacheType::kFloat8;
  return arguments.to_json();
}

// Transforms that are in the weights already: loaders have nothing to do, and people read it. As
// llm-compressor's SpinQuantModifier says R2.
Json transform_config(std::span<const RotatedHeads> rotated, const WrapperSpec* wrapper) {
  const auto part = [&](const std::vector<std::string>& modules, const char* location, bool inverse) {
    Json targets = Json::array();
    for (const std::string& module : modules) targets.push_back(compressed_target(module, wrapper));
    return Json::object({{"ignore", Json::array()},
                         {"inverse", inverse},
                         {"location", location},
                         {"targets", std::move(targets)}});
  };
  Json groups = Json::object();
  for (const RotatedHeads& heads : rotated)
    groups[rotated.size() == 1 ? "R2" : fmt::format("R2_{}", heads.size)] =
        Json::object({{"apply", Json::array({part(heads.values, "weight_output", false),
                                             part(heads.outputs, "weight_input", true)})},
                      {"head_dim", heads.size},
                      {"randomize", false},
                      {"requires_grad", false},
                      {"type", "hadamard"}});
  return Json::object({{"config_groups", std::move(groups)}});
}

std::optional<std::string> compressed_refusal(const PlannedModule& m, const PlannedModule&) {
  const QuantScheme& scheme = m.scheme;
  if (scheme.bits < 2 || scheme.bits > 8)
    return fmt::format("codes of {} bits cannot be packed; 2 to 8 can", scheme.bits);
  if (is_packed(scheme) && scheme.granularity == Granularity::kTensor)
    return "one scale for a whole tensor cannot be written; per group or per channel can";
  if (m.column_groups && scheme.granularity != Granularity::kGroup)
    return "a group index without groups of columns cannot be written";
  if (!is_packed(scheme))
    if (std::optional<std::string> reason = codes_refusal(m)) return reason;
  if (m.in_features % scheme.group_of(m.in_features) != 0)
    return fmt::format("group size {} does not divide the {} input features", scheme.group_size,
                       m.in_features);
  if (scheme.scale_dtype != DType::kBF16 && scheme.scale_dtype != DType::kF16 &&
      scheme.scale_dtype != DType::kF32)
    return fmt::format("scales cannot be stored as {}", dtype_row(scheme.scale_dtype).name);
  return std::nullopt;
}

}  // namespace

const PackedFormatRow kCompressedTensorsFormat = {
    .name = "compressed-tensors",
    .declare = compressed_tensors,
    .pack = pack_compressed,
    .config = compressed_config,
    .refusal = compressed_refusal,
    .float4 = true,
    .float8 = true,
    .column_groups_warning =
        "gptq.order act stores a group per column, which compressed-tensors 0.19 and later and vLLM 0.33 do "
        "not read: order: gar is read by all",
    .kv_cache_scheme = kv_cache_scheme,
    .transform_config = transform_config};

}  // namespace llmq

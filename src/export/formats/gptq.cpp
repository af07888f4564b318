// GPTQ as AutoGPTQ, GPTQModel, Transformers and vLLM read it: transposed words along the inputs, a group
// index.
//
//   <module>.qweight  I32 [in*b/32, out]      column n: a little-endian stream of b-bit fields,
//                                              field k = code(n, k)
//   <module>.qzeros   I32 [groups, out*b/32]  row g: the same stream of the zeros; gptq (v1) stores zero - 1,
//                                             gptq_v2 the zero
//   <module>.scales   F16 [groups, out]
//   <module>.g_idx    I32 [in]                the group of each column
//
// Bits 2, 3, 4 and 8. A true zero of 0 has no place in v1; such a group is stored with its zero and its codes
// one higher, which are the same weights, where no code of it is at the top already. Schemes that differ from
// the first module's, and linears left dense, are rules of `dynamic`. Sources: AutoGPTQ
// nn_modules/qlinear/qlinear_cuda.py, GPTQModel 7.7 nn_modules/qlinear, quantization/config.py;
// docs/reference/formats.md.
#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "export/formats/fused_linears.h"
#include "export/formats/packed_formats.h"
#include "tensor/packed_layout.h"

namespace llmq {
namespace {

std::vector<TensorDeclaration> gptq_tensors(const PlannedModule& m) {
  const std::int64_t groups = m.in_features / m.scheme.group_of(m.in_features);
  return {{m.module + ".qweight", DType::kI32, {m.in_features * m.scheme.bits / 32, m.out_features}},
          {m.module + ".qzeros", DType::kI32, {groups, m.out_features * m.scheme.bits / 32}},
          {m.module + ".scales", DType::kF16, {groups, m.out_features}},
          {m.module + ".g_idx", DType::kI32, {m.in_features}}};
}

// Zeros of 0 become 1, their codes one more: (c + 1) - (z + 1) = c - z.
void lift_zeros(const std::string& module, QuantizedMatrix& matrix) {
  const std::int64_t groups = matrix.groups();
  for (std::int64_t n = 0; n < matrix.out_features; ++n) {
    std::uint8_t* zeros = matrix.zeros.data() + n * groups;
    if (std::find(zeros, zeros + groups, 0) == zeros + groups) continue;
    std::uint8_t* codes = matrix.codes.data() + n * matrix.in_features;
    for (std::int64_t k = 0; k < matrix.in_features; ++k) {
      const std::int64_t g = matrix.group_of_column(k);
      if (zeros[g] != 0) continue;
      if (codes[k] == matrix.scheme.code_count() - 1)
        fail(ErrorKind::kUnsupported,
             {fmt::format("output {} has a zero of 0 in group {}, which format gptq (v1) cannot store", n, g),
              {},
              module,
              "format: gptq_v2 stores it"});
      ++codes[k];
    }
    std::replace(zeros, zeros + groups, std::uint8_t{0}, std::uint8_t{1});
  }
}

std::vector<PackedTensor> pack_words(const PlannedModule& module, const QuantizedMatrix& matrix,
                                     std::span<const std::uint8_t> stored_zeros) {
  const std::int64_t out = matrix.out_features, in = matrix.in_features, groups = matrix.groups();
  const int bits = matrix.scheme.bits;
  std::vector<PackedTensor> tensors;
  for (TensorDeclaration& declaration : gptq_tensors(module)) tensors.push_back({declaration, {}});
  tensors[0].bytes = word_bytes(pack_gptq(matrix.codes, out, in, bits));
  tensors[1].bytes = word_bytes(pack_bit_stream(transposed(stored_zeros, out, groups), groups, out, bits));
  tensors[2].bytes = scale_bytes(transposed(std::span<const float>(matrix.scales), out, groups), DType::kF16);
  tensors[3].bytes = group_index_bytes(matrix);
  return tensors;
}

std::vector<PackedTensor> pack_v1(const PlannedModule& module, const QuantizedMatrix& matrix) {
  QuantizedMatrix lifted = matrix;
  lift_zeros(module.module, lifted);
  std::vector<std::uint8_t> less_one = lifted.zeros;
  for (std::uint8_t& zero : less_one) --zero;
  return pack_words(module, lifted, less_one);
}

std::vector<PackedTensor> pack_v2(const PlannedModule& module, const QuantizedMatrix& matrix) {
  return pack_words(module, matrix, matrix.zeros);
}

bool same_words(const PlannedModule& a, const PlannedModule& b) {
  return a.scheme.bits == b.scheme.bits && a.scheme.symmetric == b.scheme.symmetric &&
         group_size_of(a.scheme) == group_size_of(b.scheme) && a.column_groups == b.column_groups;
}

Json rules(const ListedModules& listed) {
  Json dynamic = Json::object();
  std::set<std::string> fused;
  const auto exactly = [&](const std::string& name) { return name_expression(name, listed.wrapper); };
  for (const std::string& part : part_expressions(listed)) dynamic["-:" + part] = Json::object();
  const std::set<std::string> uniform = uniform_experts(listed, same_words);
  const auto rule = [&](const char* sign, const std::string& module, const Json& value) {
    if (const std::string experts = experts_of(module); uniform.contains(experts)) {
      dynamic[sign + experts_expression(experts, listed.wrapper)] = value;
      return;
    }
    dynamic[sign + exactly(module)] = value;
    const FusedLinear whole = fused_linear(module);
    if (whole.parts > 1 && whole.looked_up && fused.insert(whole.module).second)
      dynamic[sign + exactly(whole.module)] = value;
  };
  for (const PlannedModule& m : listed.packed)
    if (!same_words(m, listed.packed.front()))
      rule("+:", m.module,
           Json::object({{"bits", m.scheme.bits},
                         {"group_size", group_size_of(m.scheme)},
                         {"sym", m.scheme.symmetric},
                         {"desc_act", m.column_groups}}));
  for (const std::string& name : listed.dense)
    if (name != "lm_head") rule("-:", name, Json::object());
  return dynamic;
}

Json gptq_config(const ListedModules& listed, const char* checkpoint_format) {
  const PlannedModule& first = listed.packed.front();
  Json json = Json::object({{"bits", first.scheme.bits},
                            {"checkpoint_format", checkpoint_format},
                            {"desc_act", first.column_groups},
                            {"format", checkpoint_format},
                            {"group_size", group_size_of(first.scheme)},
                            {"lm_head", false},
                            {"meta", Json::object({{"quantizer", Json::array({"llmq"})}})},
                            {"method", "gptq"},
                            {"pack_dtype", "int32"},
                            {"quant_method", "gptq"},
                            {"static_groups", false},
                            {"sym", first.scheme.symmetric},
                            {"true_sequential", true}});
  if (Json dynamic = rules(listed); !dynamic.members().empty()) json["dynamic"] = std::move(dynamic);
  return json;
}

Json config_v1(const ListedModules& listed) { return gptq_config(listed, "gptq"); }
Json config_v2(const ListedModules& listed) { return gptq_config(listed, "gptq_v2"); }

std::optional<std::string> gptq_refusal(const PlannedModule& m, const PlannedModule&) {
  const QuantScheme& scheme = m.scheme;
  if (scheme.activation_bits != 16) return "formats gptq and gptq_v2 store no quantized activations";
  if (scheme.bits != 2 && scheme.bits != 3 && scheme.bits != 4 && scheme.bits != 8)
    return fmt::format("formats gptq and gptq_v2 store codes of 2, 3, 4 and 8 bits, not of {}", scheme.bits);
  if (scheme.granularity != Granularity::kGroup && scheme.granularity != Granularity::kChannel)
    return "formats gptq and gptq_v2 have scales per group or per channel only";
  if (scheme.scale_dtype != DType::kF16)
    return fmt::format("formats gptq and gptq_v2 store scales as F16, not {}",
                       dtype_row(scheme.scale_dtype).name);
  if (m.in_features % scheme.group_of(m.in_features) != 0)
    return fmt::format("group size {} does not divide the {} input features", scheme.group_size,
                       m.in_features);
  for (const auto& [extent, what] : {std::pair{m.in_features, "input"}, std::pair{m.out_features, "output"}})
    if (extent * scheme.bits % 32 != 0)
      return fmt::format("{} {} features of {} bits do not fill whole words of 32", extent, what,
                         scheme.bits);
  return std::nullopt;
}

constexpr std::string_view kColumnGroupsWarning =
    "gptq.order act stores a group per column (desc_act), which GPTQModel reads and vLLM 0.33 does not: "
    "order: gar is read by both";

constexpr std::string_view kTowerRefusal =
    "vLLM leaves the vision tower of a GPTQ checkpoint dense whatever `dynamic` says";

}  // namespace

const PackedFormatRow kGptqFormat = {
    .name = "gptq",
    .declare = gptq_tensors,
    .pack = pack_v1,
    .config = config_v1,
    .refusal = gptq_refusal,
    .config_copy = "quantize_config.json",
    .packing_bytes = 3,
    .scale_dtype = DType::kF16,
    .asymmetric_refusal = "asymmetric codes may have a zero of 0, which format gptq (v1) cannot store",
    .asymmetric_hint = "write format: gptq_v2, or a symmetric scheme",
    .column_groups_warning = kColumnGroupsWarning,
    .tower_refusal = kTowerRefusal};
const PackedFormatRow kGptqV2Format = {.name = "gptq_v2",
                                       .declare = gptq_tensors,
                                       .pack = pack_v2,
                                       .config = config_v2,
                                       .refusal = gptq_refusal,
                                       .config_copy = "quantize_config.json",
                                       .scale_dtype = DType::kF16,
                                       .column_groups_warning = kColumnGroupsWarning,
                                       .tower_refusal = kTowerRefusal};

}  // namespace llmq

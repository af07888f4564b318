// AutoAWQ "gemm": 4-bit codes, transposed, eight outputs interleaved in a word.
//
//   <module>.qweight  I32 [in, out/8]      nibble i of word (k, c) = code(8c + order[i], k),
//                                          order = 0 2 4 6 1 3 5 7
//   <module>.qzeros   I32 [groups, out/8]  the true zero, same interleave; symmetric schemes store 8
//   <module>.scales   F16 [groups, out]
//
// The format has one bit width, one group size and FP16 scales for the whole model. Sources: AutoAWQ
// awq/modules/linear/gemm.py and awq/utils/packing_utils.py; docs/reference/formats.md.
#include "base/error.h"
#include "export/formats/packed_formats.h"
#include "tensor/packed_layout.h"

namespace llmq {
namespace {

std::vector<TensorDeclaration> awq_tensors(const PlannedModule& m) {
  const std::int64_t groups = m.in_features / m.scheme.group_of(m.in_features);
  return {{m.module + ".qweight", DType::kI32, {m.in_features, m.out_features / 8}},
          {m.module + ".qzeros", DType::kI32, {groups, m.out_features / 8}},
          {m.module + ".scales", DType::kF16, {groups, m.out_features}}};
}

std::vector<PackedTensor> pack_awq(const PlannedModule& module, const QuantizedMatrix& matrix) {
  const std::int64_t out = matrix.out_features, groups = matrix.groups();
  std::vector<PackedTensor> tensors;
  for (TensorDeclaration& declaration : awq_tensors(module)) tensors.push_back({declaration, {}});
  tensors[0].bytes = word_bytes(pack_awq_gemm(matrix.codes, out, matrix.in_features));
  tensors[1].bytes = word_bytes(pack_awq_gemm(matrix.zeros, out, groups));
  tensors[2].bytes = scale_bytes(transposed(std::span<const float>(matrix.scales), out, groups), DType::kF16);
  return tensors;
}

// The list of unquantized modules is always written out: a loader that finds null must guess from the
// tensors' types.
Json awq_config(const ListedModules& listed) {
  const QuantScheme& scheme = listed.packed.front().scheme;
  return Json::object({{"bits", 4},
                       {"group_size", group_size_of(scheme)},
                       {"modules_to_not_convert", text_list(awq_ignore(listed))},
                       {"quant_method", "awq"},
                       {"version", "gemm"},
                       {"zero_point", true}});
}

std::optional<std::string> awq_refusal(const PlannedModule& m, const PlannedModule& first) {
  const QuantScheme& scheme = m.scheme;
  if (scheme.activation_bits != 16) return "the format awq stores no quantized activations";
  if (scheme.bits != 4) return fmt::format("format awq stores 4-bit codes, not {}-bit ones", scheme.bits);
  if (scheme.granularity == Granularity::kTensor) return "format awq has no single scale for a whole tensor";
  if (scheme.scale_dtype != DType::kF16)
    return fmt::format("format awq stores scales as F16, not {}", dtype_row(scheme.scale_dtype).name);
  if (m.column_groups)
    return "format awq has no group index, and columns of one group do not lie side by side";
  if (m.out_features % 8 != 0)
    return fmt::format("format awq packs 8 outputs a word, and {} outputs are not a multiple of 8",
                       m.out_features);
  if (m.in_features % scheme.group_of(m.in_features) != 0)
    return fmt::format("group size {} does not divide the {} input features", scheme.group_size,
                       m.in_features);
  const bool grouped = scheme.granularity == Granularity::kGroup;
  if (scheme.granularity != first.scheme.granularity ||
      (grouped && scheme.group_size != first.scheme.group_size))
    return fmt::format("format awq has one scheme for the whole model, and {} has {} where {} has {}",
                       m.module, scheme.text(), first.module, first.scheme.text());
  return std::nullopt;
}

}  // namespace

const PackedFormatRow kAwqGemmFormat = {
    .name = "awq",
    .declare = awq_tensors,
    .pack = pack_awq,
    .config = awq_config,
    .refusal = awq_refusal,
    .scale_dtype = DType::kF16,
    .tower_refusal = "format awq has one scheme of 4 bits, and no place for a vision tower of 8"};

}  // namespace llmq

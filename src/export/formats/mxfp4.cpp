// "mxfp4", as gpt-oss was published: the experts of a block in stacks, all else as it was.
//
//   <experts>.gate_up_proj_blocks  U8 [experts, 2 width, hidden/32, 16]
//   <experts>.gate_up_proj_scales  U8 [experts, 2 width, hidden/32]
//   <experts>.down_proj_blocks     U8 [experts, hidden, width/32, 16]
//   <experts>.down_proj_scales     U8 [experts, hidden, width/32]
//
// Rows of gate and up are in turn; byte j of a block has code 2j low and 2j + 1 high; scales are exponents
// (E8M0). Here it is said of one linear what its rows in the stack are; export/output/stack_assembly.h puts
// them together. Source: Transformers 5.23 integrations/mxfp4.py and openai/gpt-oss-20b's config.json.
#include <fmt/format.h>

#include "export/formats/packed_formats.h"
#include "tensor/mxfp4.h"

namespace llmq {
namespace {

std::vector<TensorDeclaration> mxfp4_tensors(const PlannedModule& m) {
  const std::int64_t blocks = m.in_features / kMxfp4Block;
  return {{m.module + ".blocks", DType::kU8, {m.out_features, blocks, kMxfp4Block / 2}},
          {m.module + ".scales", DType::kU8, {m.out_features, blocks}}};
}

std::vector<PackedTensor> pack_mxfp4(const PlannedModule& module, const QuantizedMatrix& matrix) {
  std::vector<PackedTensor> tensors;
  for (TensorDeclaration& declaration : mxfp4_tensors(module)) tensors.push_back({declaration, {}});
  const auto code = [&](std::size_t i) {  // a 0 is one without a sign here
    return matrix.codes[i] == kE2M1MinusZero ? 0 : int{matrix.codes[i]};
  };
  for (std::size_t i = 0; i < matrix.codes.size(); i += 2)
    tensors[0].bytes.push_back(static_cast<std::byte>(code(i) | code(i + 1) << 4));
  for (const float scale : matrix.scales)
    tensors[1].bytes.push_back(static_cast<std::byte>(mxfp4_byte(scale)));
  return tensors;
}

Json mxfp4_config(const ListedModules&) {
  return Json::object(
      {{"quant_method", "mxfp4"},
       {"modules_to_not_convert", Json::array({"model.layers.*.self_attn", "model.layers.*.mlp.router",
                                               "model.embed_tokens", "lm_head"})}});
}

std::optional<std::string> mxfp4_refusal(const PlannedModule& m, const PlannedModule&) {
  if (m.scheme.weight_type != WeightType::kFloat4 || m.scheme.scale_form() != ScaleForm::kExponent)
    return fmt::format("format mxfp4 stores scheme mxfp4 alone, not {}", m.scheme.text());
  if (m.module.find(".mlp.experts.") == std::string::npos)
    return "format mxfp4 stores experts alone: add this linear to ignore, as \"re:.*self_attn\" does";
  return std::nullopt;
}

}  // namespace

const PackedFormatRow kMxfp4Format = {.name = "mxfp4",
                                      .declare = mxfp4_tensors,
                                      .pack = pack_mxfp4,
                                      .config = mxfp4_config,
                                      .refusal = mxfp4_refusal,
                                      .float4 = true,
                                      .stacked = true,
                                      .scale_dtype = DType::kBF16,
                                      .tower_refusal = "format mxfp4 stores experts and nothing of 8 bits"};

}  // namespace llmq

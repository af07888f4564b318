#include "export/gguf/type_mix.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <optional>

namespace llmq {
namespace {

constexpr std::array<GgufFileType, 20> kFileTypes{
    {{"F32", 0, DType::kF32},        {"F16", 1, DType::kF16},         {"BF16", 32, DType::kBF16},
     {"Q8_0", 7, DType::kQ8_0},      {"Q4_0", 2, DType::kQ4_0},       {"Q4_1", 3, DType::kQ4_1},
     {"Q5_0", 8, DType::kQ5_0},      {"Q5_1", 9, DType::kQ5_1},       {"Q2_K", 10, DType::kQ2_K},
     {"Q3_K_S", 11, DType::kQ3_K},   {"Q3_K_M", 12, DType::kQ3_K},    {"Q3_K_L", 13, DType::kQ3_K},
     {"Q4_K_S", 14, DType::kQ4_K},   {"Q4_K_M", 15, DType::kQ4_K},    {"Q5_K_S", 16, DType::kQ5_K},
     {"Q5_K_M", 17, DType::kQ5_K},   {"Q6_K", 18, DType::kQ6_K},      {"IQ4_NL", 25, DType::kIQ4_NL},
     {"IQ4_XS", 30, DType::kIQ4_XS}, {"MXFP4_MOE", 38, DType::kMXFP4}}};
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kShortNames{
    {{"Q3_K", "Q3_K_M"}, {"Q4_K", "Q4_K_M"}, {"Q5_K", "Q5_K_M"}}};

// llama.cpp's numbers, so that the rules below read like their source.
enum FileTypeId : std::uint32_t {
  kQ4_0 = 2,
  kQ5_0 = 8,
  kQ2_K = 10,
  kQ3_K_S = 11,
  kQ3_K_M = 12,
  kQ3_K_L = 13,
  kQ4_K_S = 14,
  kQ4_K_M = 15,
  kQ5_K_M = 17,
  kIQ4_NL = 25,
  kIQ4_XS = 30,
  kMXFP4_MOE = 38,
  kNVFP4 = 39,
};

enum class MixPart { kEmbedding, kOutput, kValue, kKey, kAttentionOutput, kDown, kOther };

std::string in_lower_case(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

bool holds(const std::string& name, std::string_view part) { return name.find(part) != std::string::npos; }

MixPart part_of(const std::string& name) {
  if (name == "output.weight") return MixPart::kOutput;
  if (name == "token_embd.weight" || name == "per_layer_token_embd.weight") return MixPart::kEmbedding;
  if (holds(name, "attn_v.weight") || holds(name, "attn_qkv.weight")) return MixPart::kValue;
  if (holds(name, "attn_k.weight")) return MixPart::kKey;
  if (holds(name, "attn_output.weight")) return MixPart::kAttentionOutput;
  if (holds(name, "ffn_down")) return MixPart::kDown;
  return MixPart::kOther;
}

bool is_rounded(const GgufMixTensor& tensor) {
  return tensor.shape.rank() >= 2 && tensor.name.ends_with("weight") && !holds(tensor.name, "_norm.weight") &&
         !holds(tensor.name, "ffn_gate_inp.weight") && !holds(tensor.name, "ffn_gate_inp_shexp.weight") &&
         !holds(tensor.name, "ssm_conv1d");
}

// "blk.17.attn_q.weight" -> 17; -1 for tensors outside blocks.
int layer_of(const std::string& name) {
  constexpr std::string_view kBlock = "blk.";
  int layer = -1;
  if (name.starts_with(kBlock))
    std::from_chars(name.data() + kBlock.size(), name.data() + name.size(), layer);
  return layer;
}

bool use_more_bits(int layer, int layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

// Where the rules stand in their walk over the tensors.
struct Walk {
  const GgufFileType& file_type;
  GgufMixModel model;
  bool importance = false, tied = true;
  int values = 0;           // attn_v and attn_qkv tensors of the model
  int value = 0, down = 0;  // passed so far
  bool eight_experts() const { return model.experts == 8; }
  bool falcon() const { return model.types == GgufTypes::kFalcon; }
};

// 80 layers; most families' only where queries share keys: llama.cpp's "70B".
bool is_70b(const GgufMixModel& model) {
  return model.layers == 80 && (model.large == GgufLarge::kAll ||
                                (model.large == GgufLarge::kSharedKeys && model.heads != model.kv_heads));
}

DType value_type(Walk& walk, DType type) {
  const std::uint32_t file = walk.file_type.id;
  if (file == kQ2_K)
    type = walk.model.heads / std::max(walk.model.kv_heads, 1) >= 4 ? DType::kQ4_K : DType::kQ3_K;
  else if (file == kQ3_K_M)
    type = walk.value < 2 ? DType::kQ5_K : DType::kQ4_K;
  else if (file == kQ3_K_L)
    type = DType::kQ5_K;
  else if ((file == kIQ4_NL || file == kIQ4_XS) && walk.model.heads / std::max(walk.model.kv_heads, 1) >= 4)
    type = DType::kQ5_K;
  else if ((file == kQ4_K_M || file == kQ5_K_M) && use_more_bits(walk.value, walk.values))
    type = DType::kQ6_K;
  else if (file == kQ4_K_S && walk.value < 4)
    type = DType::kQ5_K;
  if (is_70b(walk.model) && (type == DType::kQ3_K || type == DType::kQ4_K)) type = DType::kQ5_K;
  if (walk.eight_experts()) type = DType::kQ8_0;
  ++walk.value;
  return type;
}

// Falcon's, where it has rules of its own.
std::optional<DType> falcon_down_type(const Walk& walk, int layer, DType type) {
  const int layers = walk.model.layers;
  const bool more = use_more_bits(layer, layers);
  switch (walk.file_type.id) {
    case kQ3_K_M:
      return layer < layers / 16 ? DType::kQ5_K : more ? DType::kQ4_K : DType::kQ3_K;
    case kQ3_K_L:
      return DType::kQ4_K;
    case kQ4_K_M:
      return layer < layers / 16 ? DType::kQ6_K : more ? DType::kQ5_K : DType::kQ4_K;
    case kQ4_K_S:
      return type;
    default:
      return std::nullopt;
  }
}

DType down_type(Walk& walk, DType type, const std::string& name) {
  const std::uint32_t file = walk.file_type.id;
  const int layers = walk.model.layers;
  const int layer = walk.model.experts > 1 ? layer_of(name) : walk.down;
  ++walk.down;
  if (walk.falcon())
    if (const std::optional<DType> own = falcon_down_type(walk, layer, type)) return *own;
  switch (file) {
    case kQ2_K:
      return DType::kQ3_K;
    case kQ3_K_M:
      return layer < layers / 16 ? DType::kQ5_K : DType::kQ4_K;
    case kQ3_K_L:
      return DType::kQ5_K;
    case kQ4_K_M:
    case kQ5_K_M:
      return use_more_bits(layer, layers) ? DType::kQ6_K : type;
    case kQ4_K_S:
      return layer < layers / 8 ? DType::kQ5_K : type;
    case kIQ4_NL:
    case kIQ4_XS:
      return !walk.importance && layer < layers / 8 ? DType::kQ5_K : type;
    case kQ4_0:
      return walk.importance && layer < layers / 8 ? DType::kQ4_1 : type;
    case kQ5_0:
      return walk.importance && layer < layers / 8 ? DType::kQ5_1 : type;
    default:
      return type;
  }
}

DType attention_output_type(const Walk& walk, DType type) {
  if (walk.falcon()) return walk.file_type.id == kQ3_K_L ? DType::kQ4_K : type;
  switch (walk.file_type.id) {
    case kQ2_K:
      return walk.eight_experts() ? DType::kQ5_K : DType::kQ3_K;
    case kQ3_K_M:
      return walk.eight_experts() ? DType::kQ5_K : DType::kQ4_K;
    case kQ3_K_L:
      return walk.eight_experts() ? type : DType::kQ5_K;
    case kQ3_K_S:
    case kQ4_K_S:
    case kQ4_K_M:
    case kIQ4_NL:
    case kIQ4_XS:
      return walk.eight_experts() ? DType::kQ5_K : type;
    default:
      return type;
  }
}

DType mixed_type(Walk& walk, const GgufMixTensor& tensor) {
  const DType type = walk.file_type.default_type;
  if (walk.file_type.id == kMXFP4_MOE)
    return tensor.shape.rank() > 2 && tensor.shape[0] > 1 ? DType::kMXFP4 : DType::kQ8_0;
  const MixPart part = part_of(tensor.name);
  if (part == MixPart::kOutput || (walk.tied && part == MixPart::kEmbedding)) {
    if (walk.falcon() || tensor.shape.back() % dtype_row(type).block_elements != 0) return DType::kQ8_0;
    return type == DType::kQ8_0 ? type : DType::kQ6_K;
  }
  switch (part) {
    case MixPart::kValue:
      return value_type(walk, type);
    case MixPart::kKey:
      return walk.eight_experts() ? DType::kQ8_0 : type;
    case MixPart::kDown:
      return down_type(walk, type, tensor.name);
    case MixPart::kAttentionOutput:
      return attention_output_type(walk, type);
    default:
      return type;
  }
}

}  // namespace

const GgufFileType* find_gguf_file_type(std::string_view name) {
  std::string upper(name);
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  for (const auto& [brief, full] : kShortNames)
    if (upper == brief) upper = full;
  for (const GgufFileType& row : kFileTypes)
    if (row.name == upper) return &row;
  return nullptr;
}

std::string gguf_type_name(const GgufFileType& type) { return in_lower_case(type.name); }

std::string gguf_file_type_names() {
  std::string names;
  for (const GgufFileType& row : kFileTypes) names += (names.empty() ? "" : ", ") + gguf_type_name(row);
  return names;
}

std::string gguf_file_type_hint(bool float4) {
  if (float4)
    return "write a directory of that scheme (format: compressed-tensors), then convert it --to gguf, which "
           "keeps its codes";
  return "write one of " + gguf_file_type_names();
}

std::optional<DType> find_gguf_tensor_type(std::string_view name) {
  const std::string lower = in_lower_case(name);
  for (const GgufFileType& row : kFileTypes)
    if (gguf_tensor_type_name(row.default_type) == lower) return row.default_type;
  return std::nullopt;
}

std::string gguf_tensor_type_name(DType type) { return in_lower_case(dtype_row(type).name); }

std::string gguf_tensor_type_names() {
  std::vector<std::string> names;
  for (const GgufFileType& row : kFileTypes)
    if (std::string name = gguf_tensor_type_name(row.default_type); names.empty() || names.back() != name)
      names.push_back(std::move(name));
  return fmt::format("{}", fmt::join(names, ", "));
}

bool is_of_converter(const GgufFileType& file_type) {
  return !is_block_type(file_type.default_type) || file_type.default_type == DType::kQ8_0;
}

GgufFileType stated_file_type(const GgufFileType& file_type, std::span<const GgufMixTensor> tensors) {
  const auto kept =
      std::find_if(tensors.begin(), tensors.end(), [](const auto& tensor) { return tensor.kept; });
  GgufFileType stated = file_type;
  if (kept != tensors.end() && !is_block_type(file_type.default_type))
    stated.id = kept->stored == DType::kNVFP4 ? kNVFP4 : kMXFP4_MOE;
  return stated;
}

bool may_have_block_type(const GgufMixTensor& tensor) {
  return is_rounded(tensor) && !holds(tensor.name, "per_layer_model_proj");
}

DType fitting_gguf_type(DType type, std::int64_t columns) {
  const auto divides = [&](DType t) { return columns % dtype_row(t).block_elements == 0; };
  if (divides(type)) return type;
  switch (type) {
    case DType::kQ2_K:
    case DType::kQ3_K:
      type = DType::kQ4_0;
      break;
    case DType::kIQ4_XS:
      type = DType::kIQ4_NL;
      break;
    case DType::kQ4_K:
      type = DType::kQ5_0;
      break;
    case DType::kQ5_K:
      type = DType::kQ5_1;
      break;
    case DType::kQ6_K:
      type = DType::kQ8_0;
      break;
    default:
      break;
  }
  return divides(type) ? type : DType::kF16;
}

bool gguf_tensor_before(const std::string& name, const std::string& later) {
  const int a = layer_of(name), b = layer_of(later);
  return a != b ? a < b : name < later;
}

std::vector<DType> choose_gguf_types(const GgufFileType& file_type, const GgufMixModel& model,
                                     std::span<const GgufMixTensor> tensors, bool importance) {
  Walk walk{file_type, model, importance};
  if (!tensors.empty())  // blocks behind the last count, too
    walk.model.layers = std::max(model.layers, layer_of(tensors.back().name) + 1);
  for (const GgufMixTensor& tensor : tensors) {
    if (part_of(tensor.name) == MixPart::kValue) ++walk.values;
    if (part_of(tensor.name) == MixPart::kOutput) walk.tied = false;
  }
  std::vector<DType> types;
  for (const GgufMixTensor& tensor : tensors) {
    const bool left = holds(tensor.name, "per_layer_model_proj") && !is_of_converter(file_type);
    if (!is_rounded(tensor) || left || (tensor.kept && is_of_converter(file_type)))
      types.push_back(tensor.stored);
    else if (!is_block_type(file_type.default_type))
      types.push_back(file_type.default_type);
    else
      types.push_back(fitting_gguf_type(mixed_type(walk, tensor), tensor.shape.back()));
  }
  return types;
}

}  // namespace llmq

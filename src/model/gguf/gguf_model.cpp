// Translates metadata keys to config.json keys and tensor names to Hugging Face names.
#include "model/gguf/gguf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "io/damaged_file.h"
#include "model/config_fields.h"
#include "model/families/family.h"
#include "model/gguf/gguf_family.h"
#include "model/gguf/gguf_fields.h"
#include "model/gguf/gguf_names.h"
#include "model/gguf/gguf_scales.h"
#include "model/gguf/gguf_scaling.h"

namespace llmq {
namespace {

// What the metadata says about the model, checked against itself.
struct Sizes {
  std::int64_t layers = 0, hidden = 0, intermediate = 0, heads = 0, kv_heads = 0, head_dim = 0, context = 0;
  std::int64_t turning = 0;  // channels of a head that rope turns
  std::int64_t experts = 0;
  std::int64_t further = 0;  // blocks behind the last
  GgufWidths widths;
};

constexpr std::int64_t kMostGgufWidth = 1 << 20;

GgufWidths read_widths(const GgufHeader& header, const GgufFamily& family, std::int64_t hidden) {
  GgufWidths widths{.hidden = hidden};
  // Products of three of them are counted below.
  const auto width_at = [&](const std::string& key) {
    const std::int64_t width = gguf_size(header, key);
    if (width > kMostGgufWidth) bad_gguf(header, key, fmt::format("{} is no sensible size", width));
    return width;
  };
  const auto size = [&](GgufKey key) { return width_at(family.key(key)); };
  if (family.has(GgufKey::kStateInnerWidth)) {
    widths.taps = size(GgufKey::kConvolutionTaps), widths.key_dim = size(GgufKey::kStateKeyWidth);
    widths.key_heads = size(GgufKey::kStateKeyHeads), widths.value_heads = size(GgufKey::kStateValueHeads);
    widths.value_dim = size(GgufKey::kStateInnerWidth) / widths.value_heads;
    if (widths.value_heads % widths.key_heads != 0)
      bad_gguf(
          header, family.key(GgufKey::kStateValueHeads),
          fmt::format("{} key heads do not divide the {} value heads", widths.key_heads, widths.value_heads));
  }
  if (family.has(GgufKey::kLatentRank)) {
    const std::string of_heads = fmt::format("{}.attention.", family.architecture);
    const std::int64_t turning = size(GgufKey::kTurningDimensions),
                       keys = width_at(of_heads + "key_length_mla");
    widths.heads = size(GgufKey::kHeadCount), widths.rank = size(GgufKey::kLatentRank);
    widths.plain = keys - turning;
    widths.latent_value_dim = width_at(of_heads + "value_length_mla");
    if (widths.plain < 1)
      bad_gguf(header, of_heads + "key_length_mla",
               fmt::format("is {}, and {} channels turn", keys, turning));
  }
  return widths;
}

Sizes read_sizes(const GgufHeader& header, const GgufFamily& family) {
  const auto required = [&](GgufKey key) { return gguf_size(header, family.key(key)); };
  const auto optional = [&](const std::string& key, std::int64_t fallback) {
    return header.find(key) != nullptr ? gguf_size(header, key) : fallback;
  };
  Sizes sizes;
  sizes.layers = required(GgufKey::kBlockCount);
  sizes.hidden = required(GgufKey::kEmbeddingLength);
  if (const std::string further = family.key(GgufKey::kFurtherBlocks);
      family.has(GgufKey::kFurtherBlocks) && header.find_integer(further).value_or(0) != 0)
    sizes.further = gguf_size(header, further);
  sizes.layers -= sizes.further;
  if (sizes.layers < 1)
    bad_gguf(header, family.key(GgufKey::kFurtherBlocks),
             fmt::format("is {}, of {} blocks in all", sizes.further, sizes.layers + sizes.further));
  if (sizes.layers > kLayersRange.most)
    bad_gguf(header, family.key(GgufKey::kBlockCount),
             fmt::format("is {}; the most blocks that are read are {}", sizes.layers, kLayersRange.most));
  if (const std::string key = family.key(GgufKey::kFeedForwardLength);
      family.experts == GgufExperts::kNone || header.find(key) != nullptr)
    sizes.intermediate = family.has(GgufKey::kFeedForwardLengths)
                             ? gguf_sizes_of_blocks(header, key, sizes.layers).front()
                             : required(GgufKey::kFeedForwardLength);
  sizes.context = required(GgufKey::kContextLength);
  sizes.heads = required(GgufKey::kHeadCount);
  const std::string kv_heads = family.key(GgufKey::kKvHeadCount),
                    key_length = family.key(GgufKey::kKeyLength),
                    value_length = fmt::format("{}.attention.value_length", family.architecture),
                    turning = family.key(GgufKey::kTurningDimensions);
  // Over latents every head has keys of its own, and what is told of the file's cache is of all of them.
  const bool latents = family.has(GgufKey::kLatentRank);
  const bool by_block = family.has(GgufKey::kKvHeadCounts);
  sizes.kv_heads = latents    ? sizes.heads
                   : by_block ? gguf_sizes_of_blocks(header, kv_heads, sizes.layers).front()
                              : optional(kv_heads, sizes.heads);
  sizes.head_dim =
      latents ? required(GgufKey::kTurningDimensions) : optional(key_length, sizes.hidden / sizes.heads);
  if (sizes.heads % sizes.kv_heads != 0)
    bad_gguf(header, kv_heads, fmt::format("{} does not divide the {} heads", sizes.kv_heads, sizes.heads));
  if (sizes.head_dim < 2 || sizes.head_dim % 2 != 0)
    bad_gguf(header, key_length,
             fmt::format("a head of {} values cannot be rotated in pairs", sizes.head_dim));
  if (!latents && optional(value_length, sizes.head_dim) != sizes.head_dim)
    unsupported_gguf(header, value_length, "differs from the key length");
  if (family.has(GgufKey::kExpertCount) &&
      !(family.dense_too && header.find(family.key(GgufKey::kExpertCount)) == nullptr))
    sizes.experts = required(GgufKey::kExpertCount);
  if (sizes.experts > kMostExperts)
    bad_gguf(header, family.key(GgufKey::kExpertCount),
             fmt::format("is {}, and no model has more than {}", sizes.experts, kMostExperts));
  sizes.widths = read_widths(header, family, sizes.hidden);
  if (family.has(GgufKey::kTensorLayout)) {
    sizes.widths.groups = sizes.kv_heads, sizes.widths.group_queries = sizes.heads / sizes.kv_heads;
    sizes.widths.head_dim = sizes.head_dim;
  }
  sizes.turning = optional(turning, sizes.head_dim);
  if (sizes.turning != sizes.head_dim && !family.partial_rope)
    unsupported_gguf(header, turning,
                     fmt::format("differs from the head's {} dimensions (partial rotation)", sizes.head_dim));
  if (sizes.turning > sizes.head_dim || sizes.turning % 2 != 0)
    bad_gguf(
        header, turning,
        fmt::format("{} of a head's {} values cannot be rotated in pairs", sizes.turning, sizes.head_dim));
  return sizes;
}

// What Transformers multiplies a head's width by, and cuts, to know how many of its channels turn.
double turning_share(const Sizes& sizes) {
  const auto width = static_cast<double>(sizes.head_dim);
  const double share = static_cast<double>(sizes.turning) / width;
  return static_cast<std::int64_t>(width * share) < sizes.turning ? std::nextafter(share, 1.0) : share;
}

// Keys that would change the mathematics and that no config of these families carries.
void refuse_unknown_mathematics(const GgufHeader& header, const GgufFamily& family) {
  const std::string arch = family.architecture;
  if (const auto type = header.find_string("general.type"); type && *type != "model")
    bad_gguf(header, "general.type", fmt::format("is \"{}\"; the file holds no model", type->substr(0, 64)));
  if (const auto count = header.find_integer("split.count"); count && *count > 1)
    unsupported_gguf(
        header, "split.count",
        fmt::format("the model is split over {} files; join them with llama-gguf-split --merge", *count));
  const auto knows = [&](const std::string& name) {
    return std::any_of(family.keys.begin(), family.keys.end(),
                       [&](GgufKey key) { return family.key(key) == name; });
  };
  for (const char* key : {".logit_scale", ".embedding_scale", ".residual_scale", ".attention.scale",
                          ".attn_logit_softcapping", ".final_logit_softcapping", ".attention.clamp_kqv",
                          ".attention.max_alibi_bias", ".expert_gating_func", ".expert_weights_scale",
                          ".expert_group_count", ".attention.temperature_scale"})
    if (const auto value = header.find_number(arch + key);
        value && *value != 0.0 && *value != 1.0 && !knows(arch + key))
      unsupported_gguf(header, arch + key, fmt::format("is {}; models with it are not read", *value));
}

// Of the family's scaling; those of another are refused as unknown.
bool is_rope_factors(const GgufFamily& family, std::string_view name) {
  return family.scaling == GgufScaling::kLongFactors ? name == kLongFactorsName || name == kShortFactorsName
                                                     : name == kRopeFactorsName;
}

// `names`: of what lies in each matrix, equally many rows, one behind another.
void add_stack(const GgufHeader& header, std::size_t index, const std::vector<std::string>& names,
               std::vector<NamedGgufTensor>& into) {
  const GgufTensor& tensor = header.tensors[index];
  const std::int64_t many = std::ssize(names), count = tensor.shape[0] * many;
  if (tensor.shape[1] % many != 0)
    bad_gguf(header, tensor.name, fmt::format("its shape {} has no {} halves", tensor.shape.text(), many));
  const std::int64_t rows = tensor.shape[1] / many;
  if (into.size() + static_cast<std::size_t>(count) > kMostStacked)
    bad_gguf(header, tensor.name,
             fmt::format("holds {} matrices, and with those before it more than {}", count, kMostStacked));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string& name = names[static_cast<std::size_t>(i % many)];
    const std::size_t star = name.find('*');
    into.push_back({name.substr(0, star) + std::to_string(i / many) + name.substr(star + 1), index, 0,
                    tensor.shape.rank() == 2 ? Shape{rows} : Shape{rows, tensor.shape[2]},
                    static_cast<std::uint64_t>(i) * (tensor.bytes / static_cast<std::uint64_t>(count))});
  }
}

// Of a tensor that may have others.
void add_piece(const GgufHeader& header, std::size_t index, const std::string& name, GgufPart part,
               std::vector<NamedGgufTensor>& into) {
  const GgufTensor& tensor = header.tensors[index];
  if (!(tensor.shape == part.shape))
    bad_gguf(
        header, tensor.name,
        fmt::format("its shape {} is not {}, as the metadata say", tensor.shape.text(), part.shape.text()));
  if (GgufPart::width_of(part.shape) == 1 && is_block_type(tensor.dtype))
    bad_gguf(header, tensor.name, fmt::format("is a vector of {}", dtype_row(tensor.dtype).name));
  const auto found = std::find_if(into.rbegin(), into.rend(),
                                  [&](const NamedGgufTensor& other) { return other.name == name; });
  NamedGgufTensor& result =
      found != into.rend() ? *found : into.emplace_back(NamedGgufTensor{name, index, 0});
  result.shape = part.whole;
  result.pieces.push_back({index, std::move(part)});
}

void check_pieces(const GgufHeader& header, const std::vector<NamedGgufTensor>& tensors) {
  for (const NamedGgufTensor& tensor : tensors) {
    std::int64_t there = 0;
    for (const NamedGgufTensor::Piece& piece : tensor.pieces) there += piece.part.shape.elements();
    if (!tensor.pieces.empty() && there != tensor.shape->elements())
      bad_gguf(header, header.tensors[tensor.index].name, "is there, and its counterpart is missing");
  }
}

void translate(const GgufHeader& header, std::size_t index, const GgufFamily& family, const Sizes& sizes,
               std::vector<NamedGgufTensor>& into) {
  const GgufTensor& tensor = header.tensors[index];
  const auto has = [&](std::string_view name) { return find_gguf_tensor(header, name) != nullptr; };
  const TranslatedName translated = hugging_face_name(family, tensor.name, sizes.layers, sizes.further, has);
  if (translated.name.empty())
    unsupported_gguf(
        header, tensor.name,
        fmt::format("no tensor of a {} model of {} blocks has this name", family.architecture, sizes.layers));
  if (translated.name.find('*') != std::string::npos) {
    const bool vectors = translated.name.ends_with(".bias");
    if (tensor.shape.rank() != (vectors ? 2 : 3) || tensor.shape[0] != sizes.experts ||
        tensor.shape.elements() == 0)
      bad_gguf(header, tensor.name,
               fmt::format("its shape {} is not that of a {} for each of {} experts", tensor.shape.text(),
                           vectors ? "vector" : "matrix", sizes.experts));
    std::vector<std::string> names = {translated.name};
    if (!translated.then.empty()) names.push_back(translated.then);
    return add_stack(header, index, names, into);
  }
  if (family.part != nullptr)
    if (std::optional<GgufPart> part = family.part(name_in_gguf_block(tensor.name), sizes.widths))
      return add_piece(header, index, translated.name, std::move(*part), into);
  NamedGgufTensor& result = into.emplace_back(NamedGgufTensor{translated.name, index, 0});
  if (tensor.name.ends_with("norm.weight") && !translated.unshifted) result.shift = family.norm_shift;
  // The gate of a shared expert is a matrix of one row, which older files have as a vector.
  if (tensor.shape.rank() == 1 && tensor.name.ends_with("_inp_shexp.weight"))
    result.shape = Shape{1, tensor.shape[0]};
  if (!family.turns_neighbours || translated.heads == GgufName::Heads::kNone) return;
  result.permuted_heads =
      static_cast<int>(translated.heads == GgufName::Heads::kQuery ? sizes.heads : sizes.kv_heads);
  const std::int64_t rows = tensor.shape.rank() == 0 ? 1 : tensor.shape[0];
  if (tensor.shape.rank() < 1 || tensor.shape.rank() > 2 || rows != result.permuted_heads * sizes.head_dim)
    bad_gguf(header, tensor.name,
             fmt::format("its shape {} is not {} heads of {} rows", tensor.shape.text(),
                         result.permuted_heads, sizes.head_dim));
  if (tensor.shape.rank() == 1 && is_block_type(tensor.dtype))
    bad_gguf(header, tensor.name, fmt::format("is a vector of {}", dtype_row(tensor.dtype).name));
}

// The type the checkpoint's matrices have, or would have had before they were quantized.
const char* dtype_name(const GgufHeader& header) {
  bool half = false, brain = false;
  for (const GgufTensor& tensor : header.tensors) {
    if (tensor.shape.rank() < 2) continue;  // the converter widens vectors to F32 always
    half |= tensor.dtype == DType::kF16;
    brain |= tensor.dtype == DType::kBF16 || is_block_type(tensor.dtype);
  }
  return brain ? "bfloat16" : half ? "float16" : "float32";
}

void set_token_ids(const GgufHeader& header, Json& object) {
  constexpr std::array<std::pair<const char*, const char*>, 3> kIds{
      {{"bos_token_id", "tokenizer.ggml.bos_token_id"},
       {"eos_token_id", "tokenizer.ggml.eos_token_id"},
       {"pad_token_id", "tokenizer.ggml.padding_token_id"}}};
  for (const auto& [name, key] : kIds)
    if (const auto id = header.find_integer(key)) object[name] = *id;
}

Json build_config(const GgufHeader& header, const Family& family, const Sizes& sizes) {
  const GgufTensor* embedding = find_gguf_tensor(header, "token_embd.weight");
  if (!embedding) bad_gguf(header, "token_embd.weight", "the tensor is missing");
  if (embedding->shape.rank() != 2 || embedding->shape[1] != sizes.hidden)
    bad_gguf(header, embedding->name,
             fmt::format("its shape {} is not [vocabulary, {}]", embedding->shape.text(), sizes.hidden));
  Json config = Json::object(
      {{"architectures", Json::array({family.architecture})}, {"model_type", family.model_type}});
  config["vocab_size"] = embedding->shape[0];
  config["hidden_size"] = sizes.hidden;
  if (sizes.intermediate != 0) config["intermediate_size"] = sizes.intermediate;
  config["num_hidden_layers"] = sizes.layers;
  config["num_attention_heads"] = sizes.heads;
  config["num_key_value_heads"] = sizes.kv_heads;
  config["head_dim"] = sizes.head_dim;
  config["hidden_act"] = "silu";
  config["max_position_embeddings"] = sizes.context;
  if (family.gguf->has(GgufKey::kNormEpsilon))
    config["rms_norm_eps"] = header.number(family.gguf->key(GgufKey::kNormEpsilon));
  const double theta = header.find_number(family.gguf->key(GgufKey::kFrequencyBase)).value_or(10000.0);
  config["rope_theta"] = theta;
  config["rope_scaling"] = gguf_rope_scaling(header, *family.gguf, {sizes.turning, theta, sizes.context});
  if (sizes.turning != sizes.head_dim) config["partial_rotary_factor"] = turning_share(sizes);
  const std::string original = family.gguf->key(GgufKey::kOriginalContext);
  if (family.gguf->has(GgufKey::kOriginalContext) && header.find(original) != nullptr)
    config["original_max_position_embeddings"] = gguf_size(header, original);
  config["tie_word_embeddings"] = find_gguf_tensor(header, "output.weight") == nullptr;
  family.gguf->add_config(header, config);
  config["attention_dropout"] = 0.0;
  set_token_ids(header, config);
  config["torch_dtype"] = dtype_name(header);
  config["use_cache"] = true;
  return config;
}

}  // namespace

GgufReading read_gguf_model(const GgufHeader& header) {
  const Family& family = family_of_gguf(header);
  const Sizes sizes = read_sizes(header, *family.gguf);
  refuse_unknown_mathematics(header, *family.gguf);
  GgufReading model;
  model.config = build_config(header, family, sizes);
  const GgufScales scales(header, *family.gguf, sizes.widths, sizes.experts);
  for (std::size_t index = 0; index < header.tensors.size(); ++index)
    if (!is_rope_factors(*family.gguf, header.tensors[index].name) && !scales.has(header.tensors[index]))
      translate(header, index, *family.gguf, sizes, model.tensors);
  check_pieces(header, model.tensors);
  return model;
}

std::vector<std::pair<std::string, std::string>> gguf_companion_texts(const GgufHeader& header) {
  std::vector<std::pair<std::string, std::string>> files;
  Json generation = Json::object({{"_from_model_config", true}});
  set_token_ids(header, generation);
  files.emplace_back("generation_config.json", generation.dump(2) + "\n");
  if (const auto text = header.find_string("tokenizer.chat_template"))
    files.emplace_back("chat_template.jinja", *text);
  return files;
}

}  // namespace llmq

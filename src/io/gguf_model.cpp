// Translates metadata keys to config.json keys and tensor names to Hugging Face names.
#include "io/gguf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numbers>
#include <set>

#include "base/error.h"

namespace llmq {
namespace {

constexpr std::int64_t kMaxExtent = std::int64_t{1} << 31;

struct NameRow {
  std::string_view gguf, hugging_face;
};
constexpr std::array<NameRow, 3> kModelNames{
    {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}}};
constexpr std::array<NameRow, 11> kBlockNames{{{"attn_norm", "input_layernorm"},
                                               {"attn_q", "self_attn.q_proj"},
                                               {"attn_k", "self_attn.k_proj"},
                                               {"attn_v", "self_attn.v_proj"},
                                               {"attn_output", "self_attn.o_proj"},
                                               {"attn_q_norm", "self_attn.q_norm"},
                                               {"attn_k_norm", "self_attn.k_norm"},
                                               {"ffn_norm", "post_attention_layernorm"},
                                               {"ffn_gate", "mlp.gate_proj"},
                                               {"ffn_up", "mlp.up_proj"},
                                               {"ffn_down", "mlp.down_proj"}}};
constexpr std::string_view kRopeFactors = kRopeFactorsName;

[[noreturn]] void bad(const GgufHeader& header, std::string where, std::string message) {
  fail(ErrorKind::kBadInput, ErrorDetail{std::move(message), header.file, std::move(where), {}});
}
[[noreturn]] void unsupported(const GgufHeader& header, std::string where, std::string message) {
  fail(ErrorKind::kUnsupported, ErrorDetail{std::move(message), header.file, std::move(where),
                                            "use the model's safetensors checkpoint instead"});
}

// What the metadata says about the model, checked against itself.
struct Sizes {
  std::string architecture;
  std::int64_t layers = 0, hidden = 0, intermediate = 0, heads = 0, kv_heads = 0, head_dim = 0, context = 0;
};

// An integer, or an array that says the same for every layer.
std::int64_t uniform_integer(const GgufHeader& header, const std::string& key) {
  std::int64_t value = 0;
  if (header.at(key).is_array()) {
    const auto values = header.integers(key);
    if (values.empty()) bad(header, key, "is an empty array");
    value = values.front();
    for (const std::int64_t other : values)
      if (other != value) unsupported(header, key, "differs between layers");
  } else {
    value = header.integer(key);
  }
  if (value < 1 || value > kMaxExtent) bad(header, key, fmt::format("is {}, not a sensible size", value));
  return value;
}

Sizes read_sizes(const GgufHeader& header) {
  Sizes sizes;
  sizes.architecture = header.string("general.architecture");
  const std::string& arch = sizes.architecture;
  if (arch != "llama" && arch != "qwen2" && arch != "qwen3")
    unsupported(header, "general.architecture",
                fmt::format("architecture \"{}\" is not read from GGUF; llama, qwen2 and qwen3 are",
                            arch.substr(0, 64)));
  const auto required = [&](const char* name) { return uniform_integer(header, arch + name); };
  const auto optional = [&](const char* name, std::int64_t fallback) {
    return header.find(arch + name) ? uniform_integer(header, arch + name) : fallback;
  };
  sizes.layers = required(".block_count");
  sizes.hidden = required(".embedding_length");
  sizes.intermediate = required(".feed_forward_length");
  sizes.context = required(".context_length");
  sizes.heads = required(".attention.head_count");
  sizes.kv_heads = optional(".attention.head_count_kv", sizes.heads);
  sizes.head_dim = optional(".attention.key_length", sizes.hidden / sizes.heads);
  if (sizes.heads % sizes.kv_heads != 0)
    bad(header, arch + ".attention.head_count_kv",
        fmt::format("{} does not divide the {} heads", sizes.kv_heads, sizes.heads));
  if (sizes.head_dim < 2 || sizes.head_dim % 2 != 0)
    bad(header, arch + ".attention.key_length",
        fmt::format("a head of {} values cannot be rotated in pairs", sizes.head_dim));
  if (optional(".attention.value_length", sizes.head_dim) != sizes.head_dim)
    unsupported(header, arch + ".attention.value_length", "differs from the key length");
  if (optional(".rope.dimension_count", sizes.head_dim) != sizes.head_dim)
    unsupported(header, arch + ".rope.dimension_count",
                fmt::format("differs from the head's {} dimensions (partial rotation)", sizes.head_dim));
  return sizes;
}

// Keys that would change the mathematics and that no config of these families carries.
void refuse_unknown_mathematics(const GgufHeader& header, const std::string& arch) {
  if (const auto experts = header.find_integer(arch + ".expert_count"); experts && *experts != 0)
    unsupported(header, arch + ".expert_count",
                fmt::format("is {}; mixtures of experts are not read from GGUF", *experts));
  if (const auto type = header.find_string("general.type"); type && *type != "model")
    bad(header, "general.type", fmt::format("is \"{}\"; the file holds no model", type->substr(0, 64)));
  if (const auto count = header.find_integer("split.count"); count && *count > 1)
    unsupported(
        header, "split.count",
        fmt::format("the model is split over {} files; join them with llama-gguf-split --merge", *count));
  for (const char* key :
       {".logit_scale", ".embedding_scale", ".residual_scale", ".attention.scale", ".attn_logit_softcapping",
        ".final_logit_softcapping", ".attention.clamp_kqv", ".attention.max_alibi_bias"})
    if (const auto value = header.find_number(arch + key); value && *value != 0.0 && *value != 1.0)
      unsupported(header, arch + key, fmt::format("is {}; models with it are not read", *value));
}

std::vector<float> read_rope_factors(const GgufHeader& header, const GgufTensor& tensor,
                                     std::span<const std::byte> bytes, const Sizes& sizes) {
  if (tensor.dtype != DType::kF32 || tensor.shape.elements() != sizes.head_dim / 2)
    bad(header, tensor.name,
        fmt::format("is {} {}, not F32 [{}]", dtype_row(tensor.dtype).name, tensor.shape.text(),
                    sizes.head_dim / 2));
  std::vector<float> factors(static_cast<std::size_t>(sizes.head_dim / 2));
  std::memcpy(factors.data(), bytes.data() + tensor.offset, factors.size() * sizeof(float));
  return factors;
}

// The divisor of frequency `pair` that Llama 3 prescribes (modeling_rope_utils.py,
// _compute_llama3_parameters; low_freq_factor 1, high 4).
double llama3_factor(std::int64_t pair, std::int64_t head_dim, double theta, double factor, double original) {
  const double low = 1, high = 4;
  const double wavelength =
      2 * std::numbers::pi * std::pow(theta, 2.0 * static_cast<double>(pair) / static_cast<double>(head_dim));
  if (wavelength < original / high) return 1;
  if (wavelength > original / low) return factor;
  const double smooth = (original / wavelength - low) / (high - low);
  return 1 / ((1 - smooth) / factor + smooth);
}

// rope_freqs.weight back to {"rope_type": "llama3", ...}; null for factors that are all one. Scaling original
// context, low and high factor by a common number changes nothing, so low = 1 loses no generality; high = 4
// and a context of 8192 are what every published Llama 3 has.
Json llama3_scaling(const GgufHeader& header, const std::vector<float>& factors, std::int64_t head_dim,
                    double theta) {
  const float factor = *std::max_element(factors.begin(), factors.end());
  if (factor == 1.0f && *std::min_element(factors.begin(), factors.end()) == 1.0f) return Json();
  constexpr double kOriginal = 8192;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const double expected = llama3_factor(static_cast<std::int64_t>(i), head_dim, theta, factor, kOriginal);
    // The converter computes in binary32: a few rounding steps of 2^-24, and smooth's difference can lose a
    // factor of ~4; 2^-18 is well above.
    if (!(std::abs(factors[i] - expected) <= 0x1p-18 * expected))
      unsupported(
          header, std::string(kRopeFactors),
          fmt::format(
              "factor {} is {} where Llama 3's scaling by {} gives {}; other frequency factors cannot be "
              "told in a config",
              i, factors[i], factor, expected));
  }
  return Json::object({{"rope_type", "llama3"},
                       {"factor", static_cast<double>(factor)},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", std::int64_t{8192}}});
}

// <arch>.rope.scaling.* as a rope_scaling object, or null.
Json metadata_scaling(const GgufHeader& header, const std::string& arch) {
  const std::string prefix = arch + ".rope.scaling.";
  static const std::set<std::string, std::less<>> kKnown{
      "type",        "factor",         "original_context_length", "finetuned",
      "attn_factor", "yarn_beta_fast", "yarn_beta_slow"};
  for (const auto& [key, value] : header.metadata)
    if (key.starts_with(prefix) && !kKnown.contains(std::string_view(key).substr(prefix.size())))
      unsupported(header, key, "is not a rope scaling known here");
  const std::string type(header.find_string(prefix + "type").value_or("none"));
  if (type == "none") {
    const double linear = header.find_number(arch + ".rope.scale_linear").value_or(1.0);
    return linear == 1.0 ? Json() : Json::object({{"rope_type", "linear"}, {"factor", linear}});
  }
  if (type != "linear" && type != "yarn")
    unsupported(header, prefix + "type", fmt::format("rope scaling \"{}\" is not read", type.substr(0, 64)));
  Json scaling = Json::object({{"rope_type", type}, {"factor", header.number(prefix + "factor")}});
  if (type == "linear") return scaling;
  if (const auto factor = header.find_number(prefix + "attn_factor"); factor && *factor != 1.0)
    unsupported(header, prefix + "attn_factor", fmt::format("is {}; only 1 is read", *factor));
  if (header.find(prefix + "original_context_length"))
    scaling["original_max_position_embeddings"] = header.integer(prefix + "original_context_length");
  if (const auto beta = header.find_number(prefix + "yarn_beta_fast")) scaling["beta_fast"] = *beta;
  if (const auto beta = header.find_number(prefix + "yarn_beta_slow")) scaling["beta_slow"] = *beta;
  return scaling;
}

// "blk.3.attn_q" -> "model.layers.3.self_attn.q_proj"; empty when unknown. `layers` bounds the number.
std::string translated_stem(std::string_view stem, std::int64_t layers) {
  for (const NameRow& row : kModelNames)
    if (row.gguf == stem) return std::string(row.hugging_face);
  if (!stem.starts_with("blk.")) return {};
  stem.remove_prefix(4);
  std::int64_t layer = -1;
  const auto [end, error] = std::from_chars(stem.data(), stem.data() + stem.size(), layer);
  const auto digits = static_cast<std::size_t>(end - stem.data());
  if (error != std::errc() || layer < 0 || layer >= layers || (digits > 1 && stem[0] == '0')) return {};
  stem.remove_prefix(digits);
  if (!stem.starts_with('.')) return {};
  stem.remove_prefix(1);
  for (const NameRow& row : kBlockNames)
    if (row.gguf == stem) return fmt::format("model.layers.{}.{}", layer, row.hugging_face);
  return {};
}

GgufModelTensor translate(const GgufHeader& header, std::size_t index, const Sizes& sizes) {
  const GgufTensor& tensor = header.tensors[index];
  const std::string_view name = tensor.name;
  const std::size_t dot = name.rfind('.');
  const std::string_view suffix = dot == std::string_view::npos ? "" : name.substr(dot);
  const std::string stem =
      suffix == ".weight" || suffix == ".bias" ? translated_stem(name.substr(0, dot), sizes.layers) : "";
  if (stem.empty())
    unsupported(
        header, tensor.name,
        fmt::format("no tensor of a {} model of {} blocks has this name", sizes.architecture, sizes.layers));
  GgufModelTensor result{stem + std::string(suffix), index, 0};
  const bool q = stem.ends_with(".q_proj"), k = stem.ends_with(".k_proj");
  if (sizes.architecture == "llama" && (q || k)) {
    result.permuted_heads = static_cast<int>(q ? sizes.heads : sizes.kv_heads);
    const std::int64_t rows = tensor.shape.rank() == 0 ? 1 : tensor.shape[0];
    if (tensor.shape.rank() < 1 || tensor.shape.rank() > 2 || rows != result.permuted_heads * sizes.head_dim)
      bad(header, tensor.name,
          fmt::format("its shape {} is not {} heads of {} rows", tensor.shape.text(), result.permuted_heads,
                      sizes.head_dim));
  }
  return result;
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

const GgufTensor* find_tensor(const GgufHeader& header, std::string_view name) {
  const auto found = std::find_if(header.tensors.begin(), header.tensors.end(),
                                  [&](const GgufTensor& tensor) { return tensor.name == name; });
  return found == header.tensors.end() ? nullptr : &*found;
}

void set_token_ids(const GgufHeader& header, Json& object) {
  constexpr std::array<std::pair<const char*, const char*>, 3> kIds{
      {{"bos_token_id", "tokenizer.ggml.bos_token_id"},
       {"eos_token_id", "tokenizer.ggml.eos_token_id"},
       {"pad_token_id", "tokenizer.ggml.padding_token_id"}}};
  for (const auto& [name, key] : kIds)
    if (const auto id = header.find_integer(key)) object[name] = *id;
}

// attention_bias or mlp_bias: all of these tensors or none.
bool has_biases(const GgufHeader& header, std::initializer_list<const char*> stems) {
  std::size_t present = 0;
  for (const char* stem : stems) present += find_tensor(header, fmt::format("blk.0.{}.bias", stem)) ? 1u : 0u;
  if (present != 0 && present != stems.size())
    unsupported(header, "blk.0", "some linears of a kind have a bias and some have none");
  return present != 0;
}

Json build_config(const GgufHeader& header, std::span<const std::byte> bytes, const Sizes& sizes) {
  const std::string& arch = sizes.architecture;
  const GgufTensor* embedding = find_tensor(header, "token_embd.weight");
  if (!embedding) bad(header, "token_embd.weight", "the tensor is missing");
  if (embedding->shape.rank() != 2 || embedding->shape[1] != sizes.hidden)
    bad(header, embedding->name,
        fmt::format("its shape {} is not [vocabulary, {}]", embedding->shape.text(), sizes.hidden));

  const auto window = header.find_integer(arch + ".attention.sliding_window").value_or(0);
  const bool mistral = arch == "llama" && window > 0;
  const std::string model_type = mistral ? "mistral" : arch;
  const char* class_name = mistral           ? "MistralForCausalLM"
                           : arch == "llama" ? "LlamaForCausalLM"
                           : arch == "qwen2" ? "Qwen2ForCausalLM"
                                             : "Qwen3ForCausalLM";
  Json config = Json::object({{"architectures", Json::array({class_name})}, {"model_type", model_type}});
  config["vocab_size"] = embedding->shape[0];
  config["hidden_size"] = sizes.hidden;
  config["intermediate_size"] = sizes.intermediate;
  config["num_hidden_layers"] = sizes.layers;
  config["num_attention_heads"] = sizes.heads;
  config["num_key_value_heads"] = sizes.kv_heads;
  config["head_dim"] = sizes.head_dim;
  config["hidden_act"] = "silu";
  config["max_position_embeddings"] = sizes.context;
  config["rms_norm_eps"] = header.number(arch + ".attention.layer_norm_rms_epsilon");

  const double theta = header.find_number(arch + ".rope.freq_base").value_or(10000.0);
  config["rope_theta"] = theta;
  Json scaling = metadata_scaling(header, arch);
  if (const GgufTensor* factors = find_tensor(header, kRopeFactors)) {
    if (!scaling.is_null()) unsupported(header, std::string(kRopeFactors), "comes with another rope scaling");
    scaling =
        llama3_scaling(header, read_rope_factors(header, *factors, bytes, sizes), sizes.head_dim, theta);
  }
  config["rope_scaling"] = std::move(scaling);
  config["tie_word_embeddings"] = find_tensor(header, "output.weight") == nullptr;
  if (arch != "llama") {
    if (window > 0)
      unsupported(header, arch + ".attention.sliding_window", "sliding windows are read for llama only");
    config["use_sliding_window"] = false;
  }
  if (mistral) config["sliding_window"] = window;
  if (arch == "llama") {
    const bool attention_bias = has_biases(header, {"attn_q", "attn_k", "attn_v", "attn_output"});
    const bool mlp_bias = has_biases(header, {"ffn_gate", "ffn_up", "ffn_down"});
    if (mistral && (attention_bias || mlp_bias)) unsupported(header, "blk.0", "a Mistral model with biases");
    if (!mistral) config["attention_bias"] = attention_bias;
    if (!mistral) config["mlp_bias"] = mlp_bias;
  }
  if (arch == "qwen3")
    config["attention_bias"] = has_biases(header, {"attn_q", "attn_k", "attn_v", "attn_output"});
  config["attention_dropout"] = 0.0;
  set_token_ids(header, config);
  config["torch_dtype"] = dtype_name(header);
  config["use_cache"] = true;
  return config;
}

// A name without its suffix, and the suffix: ".weight", ".bias" or nothing.
std::pair<std::string_view, std::string_view> stem_and_suffix(std::string_view name) {
  for (const std::string_view suffix : {".weight", ".bias"})
    if (name.ends_with(suffix)) return {name.substr(0, name.size() - suffix.size()), suffix};
  return {name, {}};
}

}  // namespace

std::string gguf_name(std::string_view hugging_face) {
  constexpr std::string_view kLayers = "model.layers.";
  const auto [stem, suffix] = stem_and_suffix(hugging_face);
  for (const NameRow& row : kModelNames)
    if (row.hugging_face == stem) return std::string(row.gguf) + std::string(suffix);
  const std::size_t dot = stem.starts_with(kLayers) ? stem.find('.', kLayers.size()) : std::string_view::npos;
  if (dot == std::string_view::npos) return {};
  for (const NameRow& row : kBlockNames)
    if (row.hugging_face == stem.substr(dot + 1))
      return fmt::format("blk.{}.{}{}", stem.substr(kLayers.size(), dot - kLayers.size()), row.gguf, suffix);
  return {};
}

std::string hugging_face_name(std::string_view gguf) {
  const auto [stem, suffix] = stem_and_suffix(gguf);
  const std::string translated = translated_stem(stem, kMaxExtent);
  return translated.empty() ? translated : translated + std::string(suffix);
}

GgufModel read_gguf_model(const GgufHeader& header, std::span<const std::byte> bytes) {
  const Sizes sizes = read_sizes(header);
  refuse_unknown_mathematics(header, sizes.architecture);
  GgufModel model;
  model.config = build_config(header, bytes, sizes);
  for (std::size_t index = 0; index < header.tensors.size(); ++index)
    if (header.tensors[index].name != kRopeFactors) model.tensors.push_back(translate(header, index, sizes));
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

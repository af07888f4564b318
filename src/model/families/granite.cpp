// Granite: Llama with a factor of the embedding, of the products of queries and keys, of what each mixer
// adds, and a divisor of the logits. GraniteMoe: the same with a mixture of experts in every block, whose
// weights sum to 1. Source: Transformers' configuration_ and modeling_ of granite and of granitemoe.
//
// A checkpoint of GraniteMoe stacks its experts. Parted, they have the names that vLLM looks for where they
// are quantized.
#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

constexpr NumberRange kMultiplierRange{1e-6, 1e6};

LlamaTraits read_granite_traits(ConfigFields& config) {
  const auto multiplier = [&](const char* key) {
    return static_cast<float>(config.number(key, kMultiplierRange, 1));
  };
  LlamaTraits traits;
  traits.qkv_bias = traits.o_bias = config.flag("attention_bias", false);
  traits.embedding_scale = multiplier("embedding_multiplier");
  traits.attention_scale = multiplier("attention_multiplier");
  traits.residual_scale = multiplier("residual_multiplier");
  traits.logit_scale = 1 / config.number("logits_scaling", kMultiplierRange, 1);
  return traits;
}

LlamaSizes read_granite_sizes(ConfigFields& config, std::int64_t tensors, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, tensors, {2048, 0, 0}, spec);
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim)};
  return sizes;
}

void read_granite(ConfigFields& config, std::int64_t tensors, ModelSpec& spec) {
  const LlamaSizes sizes = read_granite_sizes(config, tensors, spec);
  LlamaTraits traits = read_granite_traits(config);
  traits.mlp_bias = config.flag("mlp_bias", false);
  fill_llama(sizes, traits, spec);
}

void read_granitemoe(ConfigFields& config, std::int64_t tensors, ModelSpec& spec) {
  const LlamaSizes sizes = read_granite_sizes(config, tensors, spec);
  LlamaTraits traits = read_granite_traits(config);
  LlamaMixture& mixture = traits.mixture.emplace();
  mixture.names = {"block_sparse_moe.router.layer", "block_sparse_moe.experts"};
  mixture.blocks.assign(spec.blocks.size(), true);
  read_experts(config, tensors, 8, 2, mixture);
  mixture.width = sizes.intermediate_size;
  mixture.normalized = true;
  fill_llama(sizes, traits, spec);
}

// The names of the model's releases, and those that Transformers 5 has in memory.
std::optional<SlabNames> find_granite_experts(const Json&, const std::string& tensor) {
  const SlabNames both{{}, ".gate_proj.weight", false, {".up_proj.weight"}}, down{{}, ".down_proj.weight"};
  for (const auto& [ending, names] : {std::pair{"input_linear.weight", both},
                                      {"experts.gate_up_proj", both},
                                      {"output_linear.weight", down},
                                      {"experts.down_proj", down}}) {
    const std::string whole = std::string(".block_sparse_moe.") + ending;
    if (!tensor.ends_with(whole)) continue;
    SlabNames found = names;
    found.before = tensor.substr(0, tensor.size() - whole.size()) + ".block_sparse_moe.experts.";
    return found;
  }
  return std::nullopt;
}

// Llama's, without the width of a head, and the four numbers behind.
constexpr std::array<GgufKey, 16> kGraniteKeys{
    GgufKey::kBlockCount,        GgufKey::kContextLength,  GgufKey::kEmbeddingLength,
    GgufKey::kFeedForwardLength, GgufKey::kHeadCount,      GgufKey::kKvHeadCount,
    GgufKey::kRopeScaling,       GgufKey::kFrequencyBase,  GgufKey::kNormEpsilon,
    GgufKey::kFileType,          GgufKey::kVocabularySize, GgufKey::kTurningDimensions,
    GgufKey::kAttentionScale,    GgufKey::kEmbeddingScale, GgufKey::kResidualScale,
    GgufKey::kLogitScale};

void add_granite_multipliers(const GgufHeader& header, const std::string& architecture, Json& config) {
  for (const auto& [key, name] : {std::pair{"attention_multiplier", ".attention.scale"},
                                  {"embedding_multiplier", ".embedding_scale"},
                                  {"residual_multiplier", ".residual_scale"},
                                  {"logits_scaling", ".logit_scale"}}) {
    const std::string stored = architecture + name;
    const auto value = header.find_number(stored);
    if (!value) bad_gguf(header, stored, "is missing");
    config[key] = *value;
  }
}

void add_granite_gguf(const GgufHeader& header, Json& config) {
  add_granite_multipliers(header, "granite", config);
  config["attention_bias"] = has_gguf_biases(header, {"attn_q", "attn_k", "attn_v", "attn_output"});
  config["mlp_bias"] = has_gguf_biases(header, {"ffn_gate", "ffn_up", "ffn_down"});
}

constexpr std::array<GgufKey, 18> kGraniteMoeKeys{
    GgufKey::kBlockCount,        GgufKey::kContextLength,     GgufKey::kEmbeddingLength,
    GgufKey::kFeedForwardLength, GgufKey::kHeadCount,         GgufKey::kKvHeadCount,
    GgufKey::kRopeScaling,       GgufKey::kFrequencyBase,     GgufKey::kNormEpsilon,
    GgufKey::kExpertCount,       GgufKey::kExpertUsedCount,   GgufKey::kFileType,
    GgufKey::kVocabularySize,    GgufKey::kTurningDimensions, GgufKey::kAttentionScale,
    GgufKey::kEmbeddingScale,    GgufKey::kResidualScale,     GgufKey::kLogitScale};

constexpr auto kGraniteMoeNames = joined(
    kAttentionNames, std::array<GgufName, 5>{{{"ffn_norm", "post_attention_layernorm"},
                                              {"ffn_gate_inp", "block_sparse_moe.router.layer"},
                                              {"ffn_gate_exps", "block_sparse_moe.experts.*.gate_proj"},
                                              {"ffn_up_exps", "block_sparse_moe.experts.*.up_proj"},
                                              {"ffn_down_exps", "block_sparse_moe.experts.*.down_proj"}}});

void add_granitemoe_gguf(const GgufHeader& header, Json& config) {
  add_granite_multipliers(header, "granitemoe", config);
  add_gguf_experts(header, "num_local_experts", config);
  config["attention_bias"] = has_gguf_biases(header, {"attn_q", "attn_k", "attn_v", "attn_output"});
}

constexpr GgufFamily kGraniteMoeGguf = {.architecture = "granitemoe",
                                        .names = {"model.layers", kLlamaModelNames, kGraniteMoeNames},
                                        .keys = kGraniteMoeKeys,
                                        .turns_neighbours = true,
                                        .output_biases = true,
                                        .experts = GgufExperts::kSumToOne,
                                        .vocabulary = kLlamaVocabulary,
                                        .add_config = add_granitemoe_gguf};

constexpr GgufFamily kGraniteGguf = {.architecture = "granite",
                                     .names = kLlamaNames,
                                     .keys = kGraniteKeys,
                                     .turns_neighbours = true,
                                     .output_biases = true,
                                     .vocabulary = kLlamaVocabulary,
                                     .add_config = add_granite_gguf};

}  // namespace

extern const Family kGraniteFamily = {"granite", "GraniteForCausalLM", false, read_granite, &kGraniteGguf};
extern const Family kGraniteMoeFamily = {"granitemoe",    "GraniteMoeForCausalLM", false,
                                         read_granitemoe, &kGraniteMoeGguf,        find_granite_experts};

}  // namespace llmq

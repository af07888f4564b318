// Qwen2-MoE and Qwen1.5-MoE: Qwen2 with a mixture of experts in most blocks, and beside them one that every
// row passes, weighed by a gate of its own. Source: Transformers' configuration_qwen2_moe and
// modeling_qwen2_moe.
#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

void read_qwen2_moe(ConfigFields& config, std::int64_t tensors, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, tensors, {32768, 16, 0}, spec);
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim)};
  LlamaTraits traits;
  traits.qkv_bias = config.flag("qkv_bias", true);
  config.find("attention_bias");  // no field of this family
  config.require_neutral("mlp_bias", false);
  config.require_neutral("use_mrope", false);
  traits.mixture = read_qwen_mixture(config, tensors, spec, 60, 4, 1408);
  traits.mixture->shared_width = config.integer("shared_expert_intermediate_size", kWidthRange, 5632);
  fill_llama(sizes, traits, spec);
}

constexpr std::array<GgufKey, 15> kQwen2MoeKeys{
    GgufKey::kBlockCount,  GgufKey::kContextLength, GgufKey::kEmbeddingLength,  GgufKey::kFeedForwardLength,
    GgufKey::kHeadCount,   GgufKey::kKvHeadCount,   GgufKey::kRopeScaling,      GgufKey::kFrequencyBase,
    GgufKey::kNormEpsilon, GgufKey::kExpertCount,   GgufKey::kExpertUsedCount,  GgufKey::kUnusualKeyLength,
    GgufKey::kFileType,    GgufKey::kExpertWidth,   GgufKey::kSharedExpertWidth};

void add_qwen2_moe_gguf(const GgufHeader& header, Json& config) {
  add_gguf_experts(header, "num_experts", config);
  config["moe_intermediate_size"] = gguf_size(header, "qwen2moe.expert_feed_forward_length");
  config["shared_expert_intermediate_size"] = gguf_size(header, "qwen2moe.expert_shared_feed_forward_length");
  config["norm_topk_prob"] = false;
  config["use_sliding_window"] = false;
  config["qkv_bias"] = has_gguf_biases(header, {"attn_q", "attn_k", "attn_v"});
}

constexpr GgufFamily kQwen2MoeGguf = {.architecture = "qwen2moe",
                                      .names = kMixtureNames,
                                      .keys = kQwen2MoeKeys,
                                      .experts = GgufExperts::kAsTheyAre,
                                      .add_config = add_qwen2_moe_gguf};

}  // namespace

extern const Family kQwen2MoeFamily = {"qwen2_moe",    "Qwen2MoeForCausalLM", false,
                                       read_qwen2_moe, &kQwen2MoeGguf,        find_stacked_experts};

}  // namespace llmq

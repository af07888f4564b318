// Qwen3-MoE: Qwen3 with a mixture of experts in most blocks. Source: Transformers' configuration_qwen3_moe
// and modeling_qwen3_moe.
#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

void read_qwen3_moe(ConfigFields& config, std::int64_t tensors, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, tensors, {32768, 4, 0}, spec);
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim)};
  LlamaTraits traits;
  traits.qkv_bias = traits.o_bias = config.flag("attention_bias", false);
  traits.query_key_norm = true;
  config.require_neutral("mlp_bias", false);
  traits.mixture = read_qwen_mixture(config, tensors, spec, 128, 8, 768);
  fill_llama(sizes, traits, spec);
}

constexpr std::array<GgufKey, 14> kQwen3MoeKeys{
    GgufKey::kBlockCount,  GgufKey::kContextLength, GgufKey::kEmbeddingLength, GgufKey::kFeedForwardLength,
    GgufKey::kHeadCount,   GgufKey::kKvHeadCount,   GgufKey::kRopeScaling,     GgufKey::kFrequencyBase,
    GgufKey::kNormEpsilon, GgufKey::kExpertCount,   GgufKey::kExpertUsedCount, GgufKey::kKeyLength,
    GgufKey::kFileType,    GgufKey::kExpertWidth};

void add_qwen3_moe_gguf(const GgufHeader& header, Json& config) {
  add_gguf_experts(header, "num_experts", config);
  config["moe_intermediate_size"] = gguf_size(header, "qwen3moe.expert_feed_forward_length");
  config["norm_topk_prob"] = true;
  config["use_sliding_window"] = false;
  config["attention_bias"] = has_gguf_biases(header, {"attn_q", "attn_k", "attn_v", "attn_output"});
}

constexpr GgufFamily kQwen3MoeGguf = {.architecture = "qwen3moe",
                                      .names = kMixtureNames,
                                      .keys = kQwen3MoeKeys,
                                      .experts = GgufExperts::kSumToOne,
                                      .add_config = add_qwen3_moe_gguf};

}  // namespace

extern const Family kQwen3MoeFamily = {"qwen3_moe",    "Qwen3MoeForCausalLM", false,
                                       read_qwen3_moe, &kQwen3MoeGguf,        find_stacked_experts};

}  // namespace llmq

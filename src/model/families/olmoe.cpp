// OLMoE: Llama with a mixture of experts in every block, and an RMS norm over all heads of q at once, another
// over all of k. Source: Transformers' configuration_olmoe and modeling_olmoe.
#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

void read_olmoe(ConfigFields& config, std::int64_t tensors, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, tensors, {4096, 0, 0, 1e-5}, spec);
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim)};
  config.require_neutral("clip_qkv", nullptr);
  config.require_neutral("mlp_bias", false);
  LlamaTraits traits;
  traits.qkv_bias = traits.o_bias = config.flag("attention_bias", false);
  traits.query_key_norm_over_all = true;
  LlamaMixture& mixture = traits.mixture.emplace();
  mixture.blocks.assign(spec.blocks.size(), true);
  read_experts(config, tensors, 64, 8, mixture);
  mixture.width = sizes.intermediate_size;
  mixture.normalized = config.flag("norm_topk_prob", false);
  fill_llama(sizes, traits, spec);
}

constexpr std::array<GgufKey, 13> kOlmoeKeys{
    GgufKey::kBlockCount,  GgufKey::kContextLength, GgufKey::kEmbeddingLength, GgufKey::kFeedForwardLength,
    GgufKey::kHeadCount,   GgufKey::kKvHeadCount,   GgufKey::kRopeScaling,     GgufKey::kFrequencyBase,
    GgufKey::kNormEpsilon, GgufKey::kExpertCount,   GgufKey::kExpertUsedCount, GgufKey::kUnusualKeyLength,
    GgufKey::kFileType};

void add_olmoe_gguf(const GgufHeader& header, Json& config) {
  add_gguf_experts(header, "num_experts", config);
  config["norm_topk_prob"] = false;
  config["attention_bias"] = false;
}

constexpr GgufFamily kOlmoeGguf = {.architecture = "olmoe",
                                   .names = kMixtureNames,
                                   .keys = kOlmoeKeys,
                                   .experts = GgufExperts::kAsTheyAre,
                                   .add_config = add_olmoe_gguf};

}  // namespace

extern const Family kOlmoeFamily = {"olmoe",    "OlmoeForCausalLM", false,
                                    read_olmoe, &kOlmoeGguf,        find_stacked_experts};

}  // namespace llmq

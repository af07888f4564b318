// Mixtral: Mistral with a mixture of experts in every block, under names of its own; the weights of a row's
// experts always sum to 1. Source: Transformers' configuration_mixtral and modeling_mixtral.
#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

void read_mixtral(ConfigFields& config, std::int64_t tensors, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, tensors, {131072, 8, 0, 1e-5}, spec);
  if (config.find("rope_parameters") == nullptr && config.find("rope_theta") == nullptr)
    config.bad("rope_theta", "is missing", "Mixtral's is 1000000");
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim)};
  config.require_neutral("attention_bias", false);
  config.require_neutral("mlp_bias", false);
  const std::int64_t window = config.integer("sliding_window", kPositionsRange, 0);
  LlamaTraits traits;
  traits.windows.assign(spec.blocks.size(), window);
  LlamaMixture& mixture = traits.mixture.emplace();
  mixture.names = {"block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2"};
  mixture.blocks.assign(spec.blocks.size(), true);
  read_experts(config, tensors, 8, 2, mixture);
  mixture.width = sizes.intermediate_size;
  mixture.normalized = true;
  fill_llama(sizes, traits, spec);
}

constexpr auto kMixtralBlockNames =
    joined(kAttentionNames, std::array<GgufName, 5>{{{"ffn_norm", "post_attention_layernorm"},
                                                     {"ffn_gate_inp", "block_sparse_moe.gate"},
                                                     {"ffn_gate_exps", "block_sparse_moe.experts.*.w1"},
                                                     {"ffn_up_exps", "block_sparse_moe.experts.*.w3"},
                                                     {"ffn_down_exps", "block_sparse_moe.experts.*.w2"}}});

// Llama's, with the experts among them.
constexpr std::array<GgufKey, 15> kMixtralKeys{
    GgufKey::kBlockCount,  GgufKey::kContextLength,  GgufKey::kEmbeddingLength,  GgufKey::kFeedForwardLength,
    GgufKey::kHeadCount,   GgufKey::kKvHeadCount,    GgufKey::kRopeScaling,      GgufKey::kFrequencyBase,
    GgufKey::kNormEpsilon, GgufKey::kExpertCount,    GgufKey::kExpertUsedCount,  GgufKey::kUnusualKeyLength,
    GgufKey::kFileType,    GgufKey::kVocabularySize, GgufKey::kTurningDimensions};

void add_mixtral_gguf(const GgufHeader& header, Json& config) {
  add_gguf_experts(header, "num_local_experts", config);
  config["sliding_window"] = nullptr;
}

constexpr GgufFamily kMixtralGguf = {.architecture = "llama",
                                     .names = {"model.layers", kLlamaModelNames, kMixtralBlockNames},
                                     .keys = kMixtralKeys,
                                     .turns_neighbours = true,
                                     .large = GgufLarge::kSharedKeys,
                                     .experts = GgufExperts::kSumToOne,
                                     .vocabulary = kLlamaVocabulary,
                                     .add_config = add_mixtral_gguf};

}  // namespace

extern const Family kMixtralFamily = {"mixtral", "MixtralForCausalLM", false, read_mixtral, &kMixtralGguf};

}  // namespace llmq

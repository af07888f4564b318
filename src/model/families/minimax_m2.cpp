// MiniMax-M2: Llama with a norm over all heads of q at once and another over all of k, heads of which a part
// turns, and a mixture of experts in every block. A router gives sigmoids; a correction is added to choose
// experts by, and those chosen weigh by their sigmoids, which are made to sum to 1. Source: Transformers'
// configuration_minimax_m2 and modeling_minimax_m2; what published configs say beside those keys.
#include <fmt/format.h>

#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

// Keys of the releases that Transformers has none of: they say what its class does.
void require_what_is_built(ConfigFields& config) {
  config.require_neutral("scoring_func", "sigmoid");
  config.require_neutral("use_routing_bias", true);
  config.require_neutral("use_qk_norm", true);
  config.require_neutral("qk_norm_type", "per_layer");
  config.require_neutral("shared_intermediate_size", 0);
  config.require_neutral("attention_bias", false);
  config.require_neutral("mlp_bias", false);
  config.require_neutral("sliding_window", nullptr);
  if (const Json* kinds = config.find("attn_type_list"); kinds != nullptr)
    for (const Json& kind : kinds->is_array() ? kinds->items() : std::vector<Json>{*kinds})
      if (!(kind == Json(1)))
        config.unsupported("attn_type_list", "names another attention than that of all tokens, which is 1");
  // Modules that predict further tokens, of which no tensor is stored, and widths that nothing has.
  for (const char* const unused :
       {"use_mtp", "num_mtp_modules", "mtp_transformer_layers", "mlp_intermediate_size"})
    config.find(unused);
}

RopeDefaults read_turning(ConfigFields& config, const LlamaSizes& sizes) {
  RopeDefaults rope{.theta = 5e6, .partial = true};
  if (config.find("rotary_dim") == nullptr) return rope;
  const std::int64_t turning = config.integer("rotary_dim", kHeadDimRange);
  if (turning > sizes.head_dim || turning % 2 != 0)
    config.bad("rotary_dim", "is no even number of a head's channels");
  rope.share = static_cast<double>(turning) / sizes.head_dim;
  return rope;
}

void read_minimax_m2(ConfigFields& config, std::int64_t tensors, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, tensors, {196608, 8, 128}, spec);
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim, read_turning(config, sizes))};
  require_what_is_built(config);
  LlamaTraits traits;
  traits.query_key_norm_over_all = true;
  LlamaMixture& mixture = traits.mixture.emplace();
  mixture.names = {"block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2"};
  mixture.names.correction = "block_sparse_moe.e_score_correction_bias";
  mixture.blocks.assign(spec.blocks.size(), true);
  read_experts(config, tensors, 256, 8, mixture);
  mixture.width = sizes.intermediate_size;
  mixture.score = RouterScore::kSigmoid;
  mixture.normalized = true;
  fill_llama(sizes, traits, spec);
}

constexpr auto kMiniMaxM2BlockNames = joined(
    kAttentionNames, kHeadNormNames,
    std::array<GgufName, 6>{{{"ffn_norm", "post_attention_layernorm"},
                             {"ffn_gate_inp", "block_sparse_moe.gate"},
                             {"exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias", {}, true},
                             {"ffn_gate_exps", "block_sparse_moe.experts.*.w1"},
                             {"ffn_up_exps", "block_sparse_moe.experts.*.w3"},
                             {"ffn_down_exps", "block_sparse_moe.experts.*.w2"}}});
constexpr GgufNames kMiniMaxM2Names{"model.layers", kLlamaModelNames, kMiniMaxM2BlockNames};

constexpr std::array<GgufKey, 16> kMiniMaxM2Keys{
    GgufKey::kBlockCount,  GgufKey::kContextLength, GgufKey::kEmbeddingLength, GgufKey::kFeedForwardLength,
    GgufKey::kHeadCount,   GgufKey::kKvHeadCount,   GgufKey::kRopeScaling,     GgufKey::kFrequencyBase,
    GgufKey::kNormEpsilon, GgufKey::kExpertCount,   GgufKey::kExpertUsedCount, GgufKey::kGatingFunction,
    GgufKey::kKeyLength,   GgufKey::kFileType,      GgufKey::kExpertWidth,     GgufKey::kTurningDimensions};

void add_minimax_m2_gguf(const GgufHeader& header, Json& config) {
  const std::string gating = "minimax-m2.expert_gating_func";
  if (const std::int64_t said = header.find_integer(gating).value_or(kGgufSigmoid); said != kGgufSigmoid)
    unsupported_gguf(header, gating, fmt::format("is {}; MiniMax-M2's experts are chosen by sigmoids", said));
  add_gguf_experts(header, "num_local_experts", config);
  config["intermediate_size"] = gguf_size(header, "minimax-m2.expert_feed_forward_length");
}

constexpr GgufFamily kMiniMaxM2Gguf = {.architecture = "minimax-m2",
                                       .names = kMiniMaxM2Names,
                                       .keys = kMiniMaxM2Keys,
                                       .partial_rope = true,
                                       .experts = GgufExperts::kSumToOne,
                                       .score = RouterScore::kSigmoid,
                                       .add_config = add_minimax_m2_gguf};

}  // namespace

extern const Family kMiniMaxM2Family = {"minimax_m2", "MiniMaxM2ForCausalLM", false, read_minimax_m2,
                                        &kMiniMaxM2Gguf};

}  // namespace llmq

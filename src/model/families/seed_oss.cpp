// Seed-OSS: Llama with heads of 128 channels whatever the width, biases for q, k and v, and one of its own
// for the output of attention. Source: Transformers' configuration_seed_oss and modeling_seed_oss.
#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

void read_seed_oss(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  const LlamaSizes sizes =
      read_llama_sizes(config, layers, {524288, 8, config.is_null("head_dim") ? 0 : 128}, spec);
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim)};
  LlamaTraits traits;
  traits.qkv_bias = config.flag("attention_bias", true);
  traits.o_bias = config.flag("attention_out_bias", false);
  traits.mlp_bias = config.flag("mlp_bias", false);
  config.find("residual_dropout");  // of training
  fill_llama(sizes, traits, spec);
}

constexpr std::array<GgufName, 9> kSeedOssBlockNames{{{"attn_norm", "input_layernorm"},
                                                      {"attn_q", "self_attn.q_proj"},
                                                      {"attn_k", "self_attn.k_proj"},
                                                      {"attn_v", "self_attn.v_proj"},
                                                      {"attn_output", "self_attn.o_proj"},
                                                      {"post_attention_norm", "post_attention_layernorm"},
                                                      {"ffn_gate", "mlp.gate_proj"},
                                                      {"ffn_up", "mlp.up_proj"},
                                                      {"ffn_down", "mlp.down_proj"}}};

void add_seed_oss_gguf(const GgufHeader& header, Json& config) {
  config["attention_bias"] = has_gguf_biases(header, {"attn_q", "attn_k", "attn_v"});
}

constexpr GgufFamily kSeedOssGguf = {.architecture = "seed_oss",
                                     .names = {"model.layers", kLlamaModelNames, kSeedOssBlockNames},
                                     .keys = kQwen3Keys,
                                     .add_config = add_seed_oss_gguf};

}  // namespace

extern const Family kSeedOssFamily = {"seed_oss", "SeedOssForCausalLM", false, read_seed_oss, &kSeedOssGguf};

}  // namespace llmq

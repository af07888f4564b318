// GLM-4 of 2025 (9B and 32B, 0414): Llama with a norm before and one behind each mixer, gate and up stored as
// one linear, and of each head a half that turns, whose pairs are neighbours. Source: Transformers'
// configuration_glm4 and modeling_glm4.
#include "model/structures/llama_like.h"

namespace llmq {
namespace {

void read_glm4(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  const LlamaSizes sizes =
      read_llama_sizes(config, layers, {131072, 2, config.is_null("head_dim") ? 0 : 128, 1.5625e-7}, spec);
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim, {.partial = true, .share = 0.5})};
  LlamaTraits traits;
  traits.qkv_bias = config.flag("attention_bias", true);
  traits.norms = {"input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm",
                  "post_mlp_layernorm"};
  traits.fused_gate_up = true;
  traits.turns.assign(spec.blocks.size(), {0, spec.ropes.front().dims, RopePairs::kNeighbours});
  fill_llama(sizes, traits, spec);
}

}  // namespace

extern const Family kGlm4Family = {"glm4", "Glm4ForCausalLM", false, read_glm4};

}  // namespace llmq

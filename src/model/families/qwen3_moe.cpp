// Qwen3-MoE: Qwen3 with a mixture of experts in most blocks. Source: Transformers' configuration_qwen3_moe
// and modeling_qwen3_moe.
#include "model/families/llama_like.h"

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

}  // namespace

extern const Family kQwen3MoeFamily = {"qwen3_moe", "Qwen3MoeForCausalLM", false, read_qwen3_moe,
                                       nullptr,     find_stacked_experts};

}  // namespace llmq

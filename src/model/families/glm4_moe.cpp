// GLM-4.5 and GLM-4.6: Llama, of whose heads a half turns, with a mixture of experts from some block on
// (model/structures/grouped_mixture.h). Source: Transformers' configuration_glm4_moe and modeling_glm4_moe.
#include "model/gguf/grouped_gguf.h"
#include "model/structures/grouped_mixture.h"
#include "model/structures/llama_like.h"

namespace llmq {
namespace {

void read_glm4_moe(ConfigFields& config, std::int64_t tensors, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, tensors, {131072, 8, 0, 1e-5}, spec);
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim, {.partial = true, .share = 0.5})};
  LlamaTraits traits;
  traits.qkv_bias = config.flag("attention_bias", false);
  traits.query_key_norm = config.flag("use_qk_norm", false);
  config.require_neutral("mlp_bias", false);
  traits.mixture = read_sigmoid_mixture(config, tensors, read_blocks_behind_dense(config, spec, 1),
                                        {.experts = 128, .width = 1408, .shared = 1, .top_k = 8});
  carry_further_blocks(config, 1, spec);
  fill_llama(sizes, traits, spec);
}

}  // namespace

extern const Family kGlm4MoeFamily = {"glm4_moe",    "Glm4MoeForCausalLM", false,
                                      read_glm4_moe, &kGlm4MoeGguf,        find_stacked_experts_of_blocks};

}  // namespace llmq

// OLMoE: Llama with a mixture of experts in every block, and an RMS norm over all heads of q at once, another
// over all of k. Source: Transformers' configuration_olmoe and modeling_olmoe.
#include "model/families/llama_like.h"

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

}  // namespace

extern const Family kOlmoeFamily = {"olmoe", "OlmoeForCausalLM",  false, read_olmoe,
                                    nullptr, find_stacked_experts};

}  // namespace llmq

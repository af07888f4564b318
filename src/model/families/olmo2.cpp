// OLMo 2: Llama with norms behind the mixers and none before them, and an RMS norm over all heads of q at
// once, another over all of k. Source: Transformers' configuration_olmo2 and modeling_olmo2.
#include "model/families/llama_like.h"

namespace llmq {
namespace {

void read_olmo2(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, layers, {2048, 0, 0, 1e-5}, spec);
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim)};
  LlamaTraits traits;
  traits.qkv_bias = traits.o_bias = config.flag("attention_bias", false);
  traits.norms_behind = traits.query_key_norm_over_all = true;
  traits.windows.assign(spec.blocks.size(), 0);
  fill_llama(sizes, traits, spec);
}

}  // namespace

extern const Family kOlmo2Family = {"olmo2", "Olmo2ForCausalLM", false, read_olmo2};

}  // namespace llmq

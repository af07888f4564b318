// Llama 1-3, SmolLM2 and everything else saved as LlamaForCausalLM: optional biases, full attention
// everywhere.
#include "model/families/llama_like.h"

namespace llmq {
namespace {

void read_llama(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, layers, {2048, 0, 0}, spec);
  spec.rope = read_rope(config, spec.max_position, sizes.head_dim);
  LlamaTraits traits;
  traits.qkv_bias = traits.o_bias = config.flag("attention_bias", false);
  traits.mlp_bias = config.flag("mlp_bias", false);
  // Transformers ignores both for this family; a value that asks for a window means another model.
  config.require_neutral("sliding_window", nullptr);
  for (const bool sliding : read_layer_types(config, spec))
    if (sliding)
      config.unsupported("layer_types", "names sliding_attention, which family llama does not have");
  traits.windows.assign(spec.blocks.size(), 0);
  fill_llama(sizes, traits, spec);
}

}  // namespace

extern const Family kLlamaFamily = {"llama", "LlamaForCausalLM", false, read_llama};

}  // namespace llmq

// Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: Llama whose q, k and v are stored as one linear, and gate and up as
// another; longrope; in Phi-4-mini three quarters of a head turn. Source: Transformers' configuration_phi3
// and modeling_phi3.
#include "model/families/llama_like.h"

namespace llmq {
namespace {

void read_phi3(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, layers, {4096, 0, 0, 1e-5}, spec);
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim, true)};
  // Read by longrope alone; beside another rope it means nothing.
  config.integer("original_max_position_embeddings", kPositionsRange, 4096);
  config.require_neutral("attention_bias", false);
  config.require_neutral("mlp_bias", false);
  const std::int64_t window =
      config.find("sliding_window") == nullptr ? 0 : config.integer("sliding_window", kPositionsRange);
  for (const bool sliding : read_layer_types(config, spec))
    if (sliding != (window != 0))
      config.unsupported("layer_types", "mixes full and sliding attention, which family phi3 does not do");
  LlamaTraits traits;
  traits.fused = true;
  traits.windows.assign(spec.blocks.size(), window);
  fill_llama(sizes, traits, spec);
}

}  // namespace

extern const Family kPhi3Family = {"phi3", "Phi3ForCausalLM", false, read_phi3};

}  // namespace llmq

// Ministral 3: Mistral with yarn whose queries grow with their position, so that attention stays sharp over
// long contexts: q (1 + beta ln(1 + floor(position / original_max_position_embeddings))). Source:
// Transformers' configuration_ministral3 and modeling_ministral3.
//
// A turn is linear, so queries turn by a table of their own that has the factor in it.
#include "model/structures/llama_like.h"

namespace llmq {
namespace {

void read_ministral3(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  const LlamaSizes sizes =
      read_llama_sizes(config, layers, {262144, 8, config.is_null("head_dim") ? 0 : 128, 1e-5}, spec);
  if (config.find("rope_parameters") == nullptr && config.find("rope_scaling") == nullptr)
    config.bad("rope_parameters", "is missing", "Ministral 3's is a yarn of factor 16 with theta 1000000");
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim, {.growth = true})};
  config.require_neutral("attention_bias", false);
  config.require_neutral("mlp_bias", false);
  const std::int64_t window = config.integer("sliding_window", kPositionsRange, 0);
  for (const bool sliding : read_layer_types(config, spec))
    if (sliding != (window != 0))
      config.unsupported("layer_types", "mixes full and sliding attention, which this family does not do");
  LlamaTraits traits;
  traits.windows.assign(spec.blocks.size(), window);
  if (const RopeSpec of_queries = spec.ropes.front(); of_queries.growth != 0) {
    spec.ropes.front().growth = 0;
    spec.ropes.push_back(of_queries);
    traits.query_table = 1;
  }
  fill_llama(sizes, traits, spec);
}

}  // namespace

extern const Family kMinistral3Family = {"ministral3", "Ministral3ForCausalLM", false, read_ministral3};

}  // namespace llmq

// Mixtral: Mistral with a mixture of experts in every block, under names of its own; the weights of a row's
// experts always sum to 1. Source: Transformers' configuration_mixtral and modeling_mixtral.
#include "model/families/llama_like.h"

namespace llmq {
namespace {

void read_mixtral(ConfigFields& config, std::int64_t tensors, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, tensors, {131072, 8, 0, 1e-5}, spec);
  if (config.find("rope_parameters") == nullptr && config.find("rope_theta") == nullptr)
    config.bad("rope_theta", "is missing", "Mixtral's is 1000000");
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim)};
  config.require_neutral("attention_bias", false);
  config.require_neutral("mlp_bias", false);
  const std::int64_t window = config.integer("sliding_window", kPositionsRange, 0);
  LlamaTraits traits;
  traits.windows.assign(spec.blocks.size(), window);
  LlamaMixture& mixture = traits.mixture.emplace();
  mixture.names = {"block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2"};
  mixture.blocks.assign(spec.blocks.size(), true);
  read_experts(config, tensors, 8, 2, mixture);
  mixture.width = sizes.intermediate_size;
  mixture.normalized = true;
  fill_llama(sizes, traits, spec);
}

}  // namespace

extern const Family kMixtralFamily = {"mixtral", "MixtralForCausalLM", false, read_mixtral};

}  // namespace llmq

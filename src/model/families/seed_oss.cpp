// Seed-OSS: Llama with heads of 128 channels whatever the width, biases for q, k and v, and one of its own
// for the output of attention. Source: Transformers' configuration_seed_oss and modeling_seed_oss.
#include "model/families/llama_like.h"

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

}  // namespace

extern const Family kSeedOssFamily = {"seed_oss", "SeedOssForCausalLM", false, read_seed_oss};

}  // namespace llmq

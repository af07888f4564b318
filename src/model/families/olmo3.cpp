// OLMo 3: OLMo 2 of which three blocks of four have a window; only those without one stretch their rope.
// Source: Transformers' configuration_olmo3 and modeling_olmo3.
#include "model/structures/llama_like.h"

namespace llmq {
namespace {

constexpr double kOlmo3Theta = 5e5;  // where rope_theta is absent
constexpr std::int64_t kOlmo3Period = 4;

void read_olmo3(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, layers, {2048, 0, 0, 1e-5}, spec);
  spec.ropes = read_ropes_by_attention(config, spec.max_position, sizes.head_dim, kOlmo3Theta);
  LlamaTraits traits;
  traits.qkv_bias = traits.o_bias = config.flag("attention_bias", false);
  traits.norms = {nullptr, "post_attention_layernorm", nullptr, "post_feedforward_layernorm"};
  traits.query_key_norm_over_all = true;
  traits.windows = read_periodic_windows(config, spec, kOlmo3Period);
  for (const std::int64_t window : traits.windows)
    traits.turns.push_back({window != 0 ? 1u : 0u, sizes.head_dim});
  fill_llama(sizes, traits, spec);
}

}  // namespace

extern const Family kOlmo3Family = {"olmo3", "Olmo3ForCausalLM", false, read_olmo3};

}  // namespace llmq

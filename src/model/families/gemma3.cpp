// Gemma 3, its decoder alone: norms before and behind each mixer, over the heads of q and k and at the end,
// all of which multiply by 1 + w; an embedding times sqrt(hidden_size); gelu; five blocks of six have a
// window, whose rope has a base of its own. Source: Transformers' configuration_gemma3 and modeling_gemma3.
//
// Transformers rounds the embedding's factor to the type of the table before it multiplies.
#include <cmath>

#include "model/families/llama_like.h"

namespace llmq {
namespace {

constexpr double kGemma3Theta = 1e6, kGemma3WindowTheta = 1e4;  // where the keys are absent
constexpr const char* kGemmaActivation = "gelu_pytorch_tanh";

// What changes the mathematics and is not known here, and a key of Transformers' caches.
void require_gemma3(ConfigFields& config) {
  for (const char* key : {"hidden_activation", "hidden_act"}) config.require_neutral(key, kGemmaActivation);
  config.require_neutral("use_bidirectional_attention", false);
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"})
    config.require_neutral(key, nullptr);
  config.find("cache_implementation");
}

void read_gemma3_windows(ConfigFields& config, const LlamaSizes& sizes, const ModelSpec& spec,
                         LlamaTraits& traits) {
  const std::int64_t period = config.integer("sliding_window_pattern", {1, kLayersRange.most}, 6);
  config.find("_sliding_window_pattern");  // written by Transformers and not read again
  traits.windows = read_periodic_windows(config, spec, period);
  for (const std::int64_t window : traits.windows)
    traits.turns.push_back({window != 0 ? 1u : 0u, sizes.head_dim});
}

void read_gemma3(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  require_gemma3(config);
  const LlamaSizes sizes = read_llama_sizes(config, layers, {131072, 4, 256}, spec, kGemmaActivation);
  spec.ropes = read_ropes_by_attention(config, spec.max_position, sizes.head_dim, kGemma3Theta,
                                       WindowTheta{"rope_local_base_freq", kGemma3WindowTheta});
  LlamaTraits traits;
  traits.qkv_bias = traits.o_bias = config.flag("attention_bias", false);
  traits.norms = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                  "post_feedforward_layernorm"};
  traits.norm_offset = 1;
  traits.query_key_norm = true;
  traits.attention_scale =
      static_cast<float>(1 / std::sqrt(config.number("query_pre_attn_scalar", {1e-6, 1e9}, 256)));
  traits.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(spec.hidden_size)));
  read_gemma3_windows(config, sizes, spec, traits);
  fill_llama(sizes, traits, spec);
  spec.embedding.scale_in_table_type = true;
  // Measured by others: a score of medgemma-27b fell from 85.6 to 69.2 by AWQ of all folds, to 83.6 by GPTQ
  // (vllm-project/llm-compressor, issue 2522; its pull request 2571 takes q, k and v out). The move is exact,
  // so that the loss comes of the scales that the search chooses.
  for (BlockSpec& block : spec.blocks)
    block.sites[static_cast<std::size_t>(block.attention()->input)].searched = false;
}

}  // namespace

extern const Family kGemma3Family = {"gemma3_text", "Gemma3ForCausalLM", true, read_gemma3};

}  // namespace llmq

// Qwen3: an RMS norm over each head of q and k before rope, an explicit head_dim (128 when absent), windows
// as Qwen2.
#include "model/families/llama_like.h"

namespace llmq {
namespace {

void read_qwen3(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, layers, {32768, 32, 128}, spec);
  spec.rope = read_rope(config, spec.max_position, sizes.head_dim);
  LlamaTraits traits;
  traits.qkv_bias = traits.o_bias = config.flag("attention_bias", false);
  traits.query_key_norm = true;
  config.require_neutral("mlp_bias", false);
  traits.windows = read_qwen_windows(config, spec);
  fill_llama(sizes, traits, spec);
}

}  // namespace

extern const Family kQwen3Family = {"qwen3", "Qwen3ForCausalLM", false, read_qwen3};

}  // namespace llmq

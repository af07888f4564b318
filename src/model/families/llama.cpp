// Llama 1-3, SmolLM2 and everything else saved as LlamaForCausalLM: optional biases, full attention
// everywhere.
#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

void read_llama(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, layers, {2048, 0, 0}, spec);
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim)};
  LlamaTraits traits;
  traits.qkv_bias = traits.o_bias = config.flag("attention_bias", false);
  traits.mlp_bias = config.flag("mlp_bias", false);
  // Transformers ignores both for this family; a value that asks for a window means another model.
  config.require_neutral("sliding_window", nullptr);
  for (const bool sliding : read_layer_types(config, spec))
    if (sliding)
      config.unsupported("layer_types", "names sliding_attention, which family llama does not have");
  fill_llama(sizes, traits, spec);
}

void add_llama_gguf(const GgufHeader& header, Json& config) {
  config["attention_bias"] = has_gguf_biases(header, {"attn_q", "attn_k", "attn_v", "attn_output"});
  config["mlp_bias"] = has_gguf_biases(header, {"ffn_gate", "ffn_up", "ffn_down"});
}

constexpr GgufFamily kLlamaGguf = {.architecture = "llama",
                                   .names = kLlamaNames,
                                   .keys = kLlamaKeys,
                                   .turns_neighbours = true,
                                   .output_biases = true,
                                   .large = GgufLarge::kSharedKeys,
                                   .vocabulary = kLlamaVocabulary,
                                   .add_config = add_llama_gguf};

}  // namespace

extern const Family kLlamaFamily = {"llama", "LlamaForCausalLM", false, read_llama, &kLlamaGguf};

}  // namespace llmq

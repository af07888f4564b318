// Mistral: Llama without biases, with one sliding window for all blocks (null: none; absent: 4096, as its
// configuration class has it).
#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

void read_mistral(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, layers, {131072, 8, 0}, spec);
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim)};
  config.require_neutral("attention_bias", false);
  config.require_neutral("mlp_bias", false);
  const std::int64_t window =
      config.is_null("sliding_window") ? 0 : config.integer("sliding_window", kPositionsRange, 4096);
  config.find("sliding_window");
  for (const bool sliding : read_layer_types(config, spec))
    if (sliding != (window != 0))
      config.unsupported("layer_types", "mixes full and sliding attention, which family mistral does not do");
  LlamaTraits traits;
  traits.windows.assign(spec.blocks.size(), window);
  fill_llama(sizes, traits, spec);
}

void add_mistral_gguf(const GgufHeader& header, Json& config) {
  config["sliding_window"] = gguf_window(header);
  refuse_gguf_biases(header, "Mistral");
}

// GGUF has no architecture of its own for it.
constexpr GgufFamily kMistralGguf = {.architecture = "llama",
                                     .names = kLlamaNames,
                                     .keys = kLlamaKeys,
                                     .turns_neighbours = true,
                                     .output_biases = true,
                                     .in_tower = &kMinistral3Gguf,
                                     .window = GgufWindow::kIfThere,
                                     .large = GgufLarge::kSharedKeys,
                                     .vocabulary = kLlamaVocabulary,
                                     .add_config = add_mistral_gguf};

}  // namespace

extern const Family kMistralFamily = {"mistral", "MistralForCausalLM", false, read_mistral, &kMistralGguf};

}  // namespace llmq

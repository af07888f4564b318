// Mistral: Llama without biases, with one sliding window for all blocks (null: none; absent: 4096, as its
// configuration class has it).
#include "model/family.h"

namespace llmq {
namespace {

FamilyTraits read_mistral(ConfigFields& config, const ModelSpec& spec) {
  FamilyTraits traits;
  config.require_neutral("attention_bias", false);
  config.require_neutral("mlp_bias", false);
  const std::int64_t window =
      config.is_null("sliding_window") ? 0 : config.integer("sliding_window", kPositionsRange, 4096);
  config.find("sliding_window");
  for (const bool sliding : read_layer_types(config, spec))
    if (sliding != (window != 0))
      config.unsupported("layer_types", "mixes full and sliding attention, which family mistral does not do");
  traits.sliding_windows.assign(spec.blocks.size(), window);
  return traits;
}

}  // namespace

const Family kMistralFamily = {"mistral", "MistralForCausalLM", 131072, 8, 0, read_mistral};

}  // namespace llmq

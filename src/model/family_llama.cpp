// Llama 1-3, SmolLM2 and everything else saved as LlamaForCausalLM: optional biases, full attention
// everywhere.
#include "model/family.h"

namespace llmq {
namespace {

FamilyTraits read_llama(ConfigFields& config, const ModelSpec& spec) {
  FamilyTraits traits;
  const bool attention = config.flag("attention_bias", false);
  const bool mlp = config.flag("mlp_bias", false);
  traits.biases = {attention, attention, attention, attention, mlp, mlp, mlp};
  // Transformers ignores both for this family; a value that asks for a window means another model.
  config.require_neutral("sliding_window", nullptr);
  for (const bool sliding : read_layer_types(config, spec))
    if (sliding)
      config.unsupported("layer_types", "names sliding_attention, which family llama does not have");
  traits.sliding_windows.assign(spec.blocks.size(), 0);
  return traits;
}

}  // namespace

const Family kLlamaFamily = {"llama", "LlamaForCausalLM", 2048, 0, 0, read_llama};

}  // namespace llmq

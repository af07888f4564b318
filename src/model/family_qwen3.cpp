// Qwen3: an RMS norm over each head of q and k before rope, an explicit head_dim (128 when absent), windows
// as Qwen2.
#include "model/family.h"

namespace llmq {
namespace {

FamilyTraits read_qwen3(ConfigFields& config, const ModelSpec& spec) {
  FamilyTraits traits;
  const bool attention = config.flag("attention_bias", false);
  traits.biases = {attention, attention, attention, attention, false, false, false};
  traits.query_key_norm = true;
  config.require_neutral("mlp_bias", false);
  traits.sliding_windows = read_qwen_windows(config, spec);
  return traits;
}

}  // namespace

const Family kQwen3Family = {"qwen3", "Qwen3ForCausalLM", 32768, 32, 128, read_qwen3};

}  // namespace llmq

// Qwen2 and Qwen2.5: biases on q, k and v, never on o; a sliding window from block max_window_layers on when
// use_sliding_window says so.
#include "model/family.h"

namespace llmq {
namespace {

FamilyTraits read_qwen2(ConfigFields& config, const ModelSpec& spec) {
  FamilyTraits traits;
  traits.biases = {true, true, true, false, false, false, false};
  config.find("attention_bias");  // no field of this family: q, k and v have theirs whatever it says
  config.require_neutral("mlp_bias", false);
  config.require_neutral("use_mrope", false);
  traits.sliding_windows = read_qwen_windows(config, spec);
  return traits;
}

}  // namespace

const Family kQwen2Family = {"qwen2", "Qwen2ForCausalLM", 32768, 32, 0, read_qwen2};

}  // namespace llmq

// What a model family adds to the common decoder: one entry per family, filled from config.json by
// model/family_<name>.cpp.
//
// All families here share one structure (RMS norms, rotary attention with grouped KV heads, a gated MLP, no
// parallel residual); they differ in defaults, biases, the q/k norm and where a sliding window applies.
// Defaults are those of Transformers' configuration classes.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "model/config_fields.h"
#include "model/model_spec.h"

namespace llmq {

// What a family decides, once its config has been read.
struct FamilyTraits {
  std::array<bool, kLinearRoles> biases{};  // by LinearRole
  bool query_key_norm = false;
  std::vector<std::int64_t> sliding_windows;  // per block; 0: full attention
};

struct Family {
  const char* model_type;
  const char* architecture;
  std::int64_t default_max_position;
  std::int64_t
      default_kv_heads;  // when the key is absent; 0: as many as heads. A null always means as many as heads.
  std::int64_t default_head_dim;  // when the key is absent; 0: hidden_size / heads
  // Reads the family's own keys; `spec` holds the common sizes by then.
  FamilyTraits (*read)(ConfigFields& config, const ModelSpec& spec);
};

extern const Family kLlamaFamily, kMistralFamily, kQwen2Family, kQwen3Family;

// Windows per block from layer_types, or from use_sliding_window, sliding_window and max_window_layers as
// Qwen2 and Qwen3 define them.
std::vector<std::int64_t> read_qwen_windows(ConfigFields& config, const ModelSpec& spec);
// layer_types as a list of "is this a sliding_attention block", empty when the key is absent. Unknown kinds
// are refused by name.
std::vector<bool> read_layer_types(ConfigFields& config, const ModelSpec& spec);

// rope_theta and rope_scaling (Transformers 4) or rope_parameters (Transformers 5).
RopeSpec read_rope(ConfigFields& config, std::int64_t max_position);

}  // namespace llmq

// Linears that an engine runs as one: vLLM makes one of q, k and v, one of gate and up, and looks its
// quantization up under the fused name.
#pragma once
#include <string>

namespace llmq {

struct FusedLinear {
  std::string module;  // "model.layers.3.self_attn.qkv_proj"; the linear itself where it stays alone
  int parts = 1;
  bool last = true;  // no part of it comes behind this one
};
FusedLinear fused_linear(const std::string& module);

}  // namespace llmq

// Linears that an engine runs as one: vLLM makes one of q, k and v, one of gate and up (of an expert's w1 and
// w3), one of what attention over latents makes of its input, and of a gated delta net one of what it
// convolves and its gates and one of its two numbers a head; it looks their quantization up under the fused
// name.
#pragma once
#include <optional>
#include <set>
#include <string>

namespace llmq {

struct FusedLinear {
  std::string module;  // "model.layers.3.self_attn.qkv_proj"; the linear itself where it stays alone
  int parts = 1;
  bool last = true;       // no part of it comes behind this one
  bool looked_up = true;  // by this name; an expert's w1 and w3 are not
};
FusedLinear fused_linear(const std::string& module);
// The same among all that are quantized: without a latent of queries, what attention over latents makes of
// its input stays two linears.
FusedLinear fused_linear(const std::string& module, const std::set<std::string>& quantized);

// The linear of values beside one of keys, and that of queries beside either of these; nullopt of others.
std::optional<std::string> values_beside(const std::string& module);
std::optional<std::string> queries_beside(const std::string& module);

}  // namespace llmq

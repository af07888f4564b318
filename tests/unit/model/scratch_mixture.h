// The scratch model with a mixture of experts in the place of its MLPs.
#pragma once
#include "scratch_model.h"

namespace llmq {

// Every column of a row is different, and no two experts are equal.
inline ScratchTensor noise_tensor(std::vector<std::int64_t> shape, std::uint32_t seed) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<float>((seed = seed * 1664525u + 1013904223u) >> 16) / 65536.0f - 0.5f);
  return scratch_tensor("F32", std::move(shape), values);
}

inline std::vector<float> floats_of(const ScratchTensor& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

// Qwen2-MoE: 5 experts of width 24, 2 of them for each row, and one of width 8 for all.
class ScratchMixture : public ScratchModel {
 public:
  static constexpr std::int64_t kExperts = 5, kWidth = 24, kShared = 8, kHidden = 16;
  ScratchMixture() : ScratchModel("qwen2_moe", "Qwen2MoeForCausalLM") {
    config["num_experts"] = kExperts;
    config["num_experts_per_tok"] = 2;
    config["moe_intermediate_size"] = kWidth;
    config["shared_expert_intermediate_size"] = kShared;
    config["norm_topk_prob"] = false;
    std::uint32_t seed = 1;
    for (const char* block : {"model.layers.0.", "model.layers.1."}) {
      const std::string at = block;
      for (const char* linear : {"gate", "up", "down"}) tensors.erase(at + "mlp." + linear + "_proj.weight");
      for (const auto& [linear, rows] : {std::pair{"q", 16}, std::pair{"k", 8}, std::pair{"v", 8}})
        tensors[at + "self_attn." + linear + "_proj.bias"] = scratch_ramp({rows});
      tensors[at + "mlp.gate.weight"] = noise_tensor({kExperts, kHidden}, ++seed);
      tensors[at + "mlp.shared_expert_gate.weight"] = noise_tensor({1, kHidden}, ++seed);
      for (std::int64_t e = 0; e <= kExperts; ++e) {
        const bool shared = e == kExperts;
        const std::string name = at + (shared ? "mlp.shared_expert" : fmt::format("mlp.experts.{}", e));
        const std::int64_t width = shared ? kShared : kWidth;
        tensors[name + ".gate_proj.weight"] = noise_tensor({width, kHidden}, ++seed);
        tensors[name + ".up_proj.weight"] = noise_tensor({width, kHidden}, ++seed);
        tensors[name + ".down_proj.weight"] = noise_tensor({kHidden, width}, ++seed);
      }
    }
  }
};

}  // namespace llmq

// Llama 4 in small: 5 experts of width 24, 2 of them for each row, whose weights multiply what they read, and
// one of all rows. Block 0 turns and sees chunks of 7, block 1 does neither.
#pragma once
#include "scratch_mixture.h"

namespace llmq {

class ScratchLlama4 : public ScratchModel {
 public:
  static constexpr std::int64_t kExperts = 5, kWidth = 24, kHidden = 16;
  ScratchLlama4() : ScratchModel("llama4_text", "Llama4ForCausalLM") {
    config["head_dim"] = 4;
    config["num_local_experts"] = kExperts;
    config["num_experts_per_tok"] = 2;
    config["no_rope_layers"] = Json::array({1, 0});
    config["attention_chunk_size"] = 7;
    config["floor_scale"] = 5;
    config["attn_scale"] = 0.7;
    std::uint32_t seed = 1;
    for (auto& [name, tensor] : tensors)
      if (name.find("norm") == std::string::npos) tensor = noise_tensor(tensor.shape, ++seed);
    for (const char* block : {"model.layers.0.", "model.layers.1."}) {
      const std::string at = block;
      for (const char* linear : {"gate", "up", "down"}) tensors.erase(at + "mlp." + linear + "_proj.weight");
      tensors[at + "feed_forward.router.weight"] = noise_tensor({kExperts, kHidden}, ++seed);
      for (std::int64_t e = 0; e <= kExperts; ++e) {
        const std::string name =
            at + "feed_forward." + (e == kExperts ? "shared_expert" : fmt::format("experts.{}", e));
        tensors[name + ".gate_proj.weight"] = noise_tensor({kWidth, kHidden}, ++seed);
        tensors[name + ".up_proj.weight"] = noise_tensor({kWidth, kHidden}, ++seed);
        tensors[name + ".down_proj.weight"] = noise_tensor({kHidden, kWidth}, ++seed);
      }
    }
  }
};

}  // namespace llmq

// A small Gemma 4 of two blocks, with experts if a test adds them.
#pragma once
#include <string>

#include "tests/unit/model/scratch_model.h"

namespace llmq {

// ScratchModel as a Gemma 4: block 0 has a window and heads of 4, block 1 one KV head of 8 that is key and
// value.
class ScratchGemma4 : public ScratchModel {
 public:
  ScratchGemma4() : ScratchModel("gemma4_text", "Gemma4ForCausalLM") {
    for (const char* norm : {"pre_feedforward_layernorm", "post_feedforward_layernorm"})
      add_to_blocks(norm + std::string(".weight"), scratch_ramp({16}));
    add_to_blocks("layer_scalar", scratch_ramp({1}));
    for (const char* norm : {".self_attn.q_norm.weight", ".self_attn.k_norm.weight"}) {
      tensors[std::string("model.layers.0") + norm] = scratch_ramp({4});
      tensors[std::string("model.layers.1") + norm] = scratch_ramp({8});
    }
    const std::string full = "model.layers.1.self_attn.";
    tensors[full + "q_proj.weight"] = scratch_ramp({32, 16});
    tensors[full + "k_proj.weight"] = scratch_ramp({8, 16});
    tensors.erase(full + "v_proj.weight");
    tensors[full + "o_proj.weight"] = scratch_ramp({16, 32});
    config["hidden_act"] = config["rope_theta"] = nullptr;
    config["head_dim"] = 4, config["global_head_dim"] = 8, config["num_global_key_value_heads"] = 1;
    config["attention_k_eq_v"] = true;
    config["sliding_window"] = 5, config["hidden_size_per_layer_input"] = 0;
    config["layer_types"] = Json::array({"sliding_attention", "full_attention"});
  }

  void add_experts() {
    for (const char* norm :
         {"post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"})
      add_to_blocks(norm + std::string(".weight"), scratch_ramp({16}));
    add_to_blocks("router.proj.weight", scratch_ramp({2, 16}));
    add_to_blocks("router.scale", scratch_ramp({16}));
    add_to_blocks("router.per_expert_scale", scratch_ramp({2}));
    add_to_blocks("experts.gate_up_proj", scratch_ramp({2, 16, 16}));
    add_to_blocks("experts.down_proj", scratch_ramp({2, 16, 8}));
    config["enable_moe_block"] = true;
    config["num_experts"] = 2, config["top_k_experts"] = 1, config["moe_intermediate_size"] = 8;
  }

  // Of 8 channels for each block, and a row more than tokens.
  void add_embedding() {
    config["hidden_size_per_layer_input"] = 8, config["vocab_size_per_layer_input"] = 33;
    tensors["model.embed_tokens_per_layer.weight"] = scratch_ramp({33, 16});
    tensors["model.per_layer_model_projection.weight"] = scratch_ramp({16, 16});
    tensors["model.per_layer_projection_norm.weight"] = scratch_ramp({8});
    add_to_blocks("per_layer_input_gate.weight", scratch_ramp({8, 16}));
    add_to_blocks("per_layer_projection.weight", scratch_ramp({16, 8}));
    add_to_blocks("post_per_layer_input_norm.weight", scratch_ramp({16}));
  }
};

// Both blocks have full attention, and the second reads the pages of the first; its MLP is twice as wide.
class ScratchSharedGemma4 : public ScratchGemma4 {
 public:
  ScratchSharedGemma4() {
    const std::string owner = "model.layers.0.self_attn.", other = "model.layers.1.self_attn.";
    for (const char* part :
         {"q_proj.weight", "k_proj.weight", "o_proj.weight", "q_norm.weight", "k_norm.weight"})
      tensors[owner + part] = tensors.at(other + part);
    tensors.erase(owner + "v_proj.weight");
    tensors.erase(other + "k_proj.weight"), tensors.erase(other + "k_norm.weight");
    for (const char* part : {"gate_proj", "up_proj"})
      tensors[fmt::format("model.layers.1.mlp.{}.weight", part)] = scratch_ramp({48, 16});
    tensors["model.layers.1.mlp.down_proj.weight"] = scratch_ramp({16, 48});
    config["layer_types"] = Json::array({"full_attention", "full_attention"});
    config["num_kv_shared_layers"] = 1, config["use_double_wide_mlp"] = true;
  }
};

}  // namespace llmq

// A gpt-oss of two blocks and two experts, with stacks as Transformers stores them, or as they were
// published.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "scratch_model.h"

namespace llmq {

// ScratchModel as a gpt-oss of two experts of width 32: hidden 32, so that MXFP4 has whole blocks.
class ScratchGptOss : public ScratchModel {
 public:
  ScratchGptOss() : ScratchModel("gpt_oss", "GptOssForCausalLM") {
    for (const char* stale : {"hidden_size", "intermediate_size"}) config[stale] = 32;
    config["head_dim"] = 4;
    config["num_local_experts"] = 2;
    config["num_experts_per_tok"] = 1;
    config["sliding_window"] = 6;
    config["rope_scaling"] = Json::object({{"rope_type", "yarn"},
                                           {"factor", 4.0},
                                           {"original_max_position_embeddings", 16},
                                           {"truncate", false}});
    tensors.clear();
    for (const char* table : {"model.embed_tokens.weight", "lm_head.weight"})
      tensors[table] = scratch_ramp({32, 32});
    tensors["model.norm.weight"] = scratch_ramp({32});
    const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
      add_to_blocks(name, scratch_ramp(std::move(shape)));
    };
    add("input_layernorm.weight", {32}), add("post_attention_layernorm.weight", {32});
    add("self_attn.q_proj.weight", {16, 32}), add("self_attn.q_proj.bias", {16});
    for (const std::string part : {"self_attn.k_proj", "self_attn.v_proj"})
      add(part + ".weight", {8, 32}), add(part + ".bias", {8});
    add("self_attn.o_proj.weight", {32, 16}), add("self_attn.o_proj.bias", {32});
    add("self_attn.sinks", {4});
    add("mlp.router.weight", {2, 32}), add("mlp.router.bias", {2});
    add("mlp.experts.gate_up_proj", {2, 32, 64}), add("mlp.experts.gate_up_proj_bias", {2, 64});
    add("mlp.experts.down_proj", {2, 32, 32}), add("mlp.experts.down_proj_bias", {2, 32});
  }

  // Codes and exponents in the place of the matrices: code = (7 row + 3 column) mod 16, exponents 120 on.
  void as_mxfp4() {
    for (const auto& [stack, rows] : {std::pair{std::string("mlp.experts.gate_up_proj"), std::int64_t{64}},
                                      {std::string("mlp.experts.down_proj"), std::int64_t{32}}}) {
      for (const char* block : {"model.layers.0.", "model.layers.1."}) tensors.erase(block + stack);
      std::vector<std::uint8_t> codes, exponents;
      for (std::int64_t row = 0; row < 2 * rows; ++row) {
        for (std::int64_t c = 0; c < 32; c += 2)
          codes.push_back(static_cast<std::uint8_t>(code(row, c) | code(row, c + 1) << 4));
        exponents.push_back(static_cast<std::uint8_t>(exponent(row)));
      }
      add_to_blocks(stack + "_blocks", scratch_tensor("U8", {2, rows, 1, 16}, codes));
      add_to_blocks(stack + "_scales", scratch_tensor("U8", {2, rows, 1}, exponents));
    }
    config["quantization_config"] = Json::object({{"quant_method", "mxfp4"}});
  }
  static int code(std::int64_t row, std::int64_t column) {
    return static_cast<int>((7 * row + 3 * column) % 16);
  }
  static int exponent(std::int64_t row) { return 120 + static_cast<int>(row % 9); }
};

}  // namespace llmq

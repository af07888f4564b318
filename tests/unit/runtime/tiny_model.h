// A random Llama of 2 blocks in a temporary directory: hidden 32, 4 heads of 8, 2 KV heads, intermediate 48,
// vocabulary 61. With a window: the same weights as a Mistral of 512 positions that looks back so far in
// every block, or as a Qwen3 that does so in the second block alone.
#pragma once
#include <cstring>

#include "base/json.h"
#include "io/safetensors.h"
#include "model/open_checkpoint.h"
#include "runtime/engine.h"
#include "support/temporary_directory.h"

namespace llmq::testing {

class TinyModel {
 public:
  enum class Windows : std::uint8_t { kEverywhere, kInTheSecondBlock };
  explicit TinyModel(std::int64_t window = 0, Windows where = Windows::kEverywhere)
      : window_(window), mixed_(where == Windows::kInTheSecondBlock) {
    add("model.embed_tokens.weight", {61, 32}, 1.0f);
    add("lm_head.weight", {61, 32}, 0.3f);
    add("model.norm.weight", {32}, 1.0f);
    for (const std::string block : {"model.layers.0.", "model.layers.1."}) {
      add(block + "input_layernorm.weight", {32}, 1.0f);
      add(block + "post_attention_layernorm.weight", {32}, 1.0f);
      add(block + "self_attn.q_proj.weight", {32, 32}, 0.5f);
      add(block + "self_attn.k_proj.weight", {16, 32}, 0.5f);
      add(block + "self_attn.v_proj.weight", {16, 32}, 0.5f);
      add(block + "self_attn.o_proj.weight", {32, 32}, 0.5f);
      add(block + "mlp.gate_proj.weight", {48, 32}, 0.5f);
      add(block + "mlp.up_proj.weight", {48, 32}, 0.5f);
      add(block + "mlp.down_proj.weight", {32, 48}, 0.5f);
    }
    if (mixed_)
      for (const std::string norm : {"0.self_attn.q", "0.self_attn.k", "1.self_attn.q", "1.self_attn.k"})
        add("model.layers." + norm + "_norm.weight", {8}, 1.0f);
    write();
  }

  // Another model: every tensor's values may be changed.
  template <typename Change>
  void change(const Change& each) {
    for (std::size_t i = 0; i < values_.size(); ++i) each(declarations_[i].name, values_[i]);
    write();
  }

  Engine load(std::shared_ptr<Backend> backend, const Engine::Options& options) const {
    return Engine::load(open_checkpoint(system_io(), directory_.path().string()), std::move(backend),
                        options);
  }

 private:
  void add(const std::string& name, const Shape& shape, float scale) {
    std::vector<float>& values = values_.emplace_back();
    for (std::int64_t i = 0; i < shape.elements(); ++i) {
      state_ = state_ * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
      values.push_back(scale * (static_cast<float>(state_ >> 40) * 0x1p-23f - 1));
    }
    declarations_.push_back({name, DType::kF32, shape});
  }
  void write() {
    Json config = Json::object({{"architectures", Json::array({mixed_    ? "Qwen3ForCausalLM"
                                                               : window_ ? "MistralForCausalLM"
                                                                         : "LlamaForCausalLM"})},
                                {"model_type", mixed_    ? "qwen3"
                                               : window_ ? "mistral"
                                                         : "llama"},
                                {"hidden_size", 32},
                                {"intermediate_size", 48},
                                {"num_attention_heads", 4},
                                {"num_key_value_heads", 2},
                                {"num_hidden_layers", 2},
                                {"vocab_size", 61},
                                {"max_position_embeddings", window_ ? 512 : 128},
                                {"rms_norm_eps", 1e-5},
                                {"hidden_act", "silu"},
                                {"tie_word_embeddings", false},
                                {"rope_theta", 10000.0},
                                {"eos_token_id", 2},
                                {"torch_dtype", "float32"}});
    if (window_) config["sliding_window"] = window_;
    if (mixed_) {
      config["head_dim"] = 8;
      config["use_sliding_window"] = true;
      config["layer_types"] = Json::array({"full_attention", "sliding_attention"});
    }
    directory_.write("config.json", config.dump(2));
    SafetensorsWriter writer(system_io(), directory_ / "model.safetensors", declarations_,
                             {{"format", "pt"}});
    for (std::size_t i = 0; i < values_.size(); ++i)
      writer.add(declarations_[i].name, std::as_bytes(std::span(values_[i])));
    writer.finish();
  }

  std::int64_t window_;
  bool mixed_;
  TemporaryDirectory directory_;
  std::vector<TensorDeclaration> declarations_;
  std::vector<std::vector<float>> values_;
  std::uint64_t state_ = 1;
};

}  // namespace llmq::testing

// A small model written to a temporary directory, to be bent by a test and opened as a checkpoint.
//
// hidden 16, 4 heads of 4, 2 KV heads, intermediate 24, vocabulary 32, 2 blocks; weights are a fixed ramp, so
// no two rows are equal.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/checkpoint.h"
#include "model/model_spec.h"
#include "model/open_checkpoint.h"

namespace llmq {

struct ScratchTensor {
  std::string dtype;  // as safetensors spells it
  std::vector<std::int64_t> shape;
  std::string bytes;
};

template <typename T>
ScratchTensor scratch_tensor(std::string dtype, std::vector<std::int64_t> shape,
                             const std::vector<T>& values) {
  ScratchTensor tensor{std::move(dtype), std::move(shape), std::string(values.size() * sizeof(T), '\0')};
  if (!values.empty()) std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

inline ScratchTensor scratch_ramp(std::vector<std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(0.001f * static_cast<float>(i % 977) - 0.4f);
  return scratch_tensor("F32", std::move(shape), values);
}

class ScratchModel {
 public:
  explicit ScratchModel(const std::string& family = "llama",
                        const std::string& architecture = "LlamaForCausalLM") {
    static int number = 0;
    directory_ =
        std::filesystem::temp_directory_path() / fmt::format("llmq-model-test-{}-{}", getpid(), number++);
    config = Json::object({{"architectures", Json::array({architecture})},
                           {"model_type", family},
                           {"hidden_size", 16},
                           {"intermediate_size", 24},
                           {"num_attention_heads", 4},
                           {"num_key_value_heads", 2},
                           {"num_hidden_layers", 2},
                           {"vocab_size", 32},
                           {"max_position_embeddings", 64},
                           {"rms_norm_eps", 1e-5},
                           {"hidden_act", "silu"},
                           {"tie_word_embeddings", false},
                           {"rope_theta", 10000.0},
                           {"bos_token_id", 1},
                           {"eos_token_id", Json::array({2, 3})},
                           {"torch_dtype", "float32"}});
    tensors["model.embed_tokens.weight"] = scratch_ramp({32, 16});
    tensors["lm_head.weight"] = scratch_ramp({32, 16});
    tensors["model.norm.weight"] = scratch_ramp({16});
    for (const std::string block : {"model.layers.0", "model.layers.1"}) {
      for (const char* norm : {".input_layernorm", ".post_attention_layernorm"})
        tensors[block + norm + ".weight"] = scratch_ramp({16});
      tensors[block + ".self_attn.q_proj.weight"] = scratch_ramp({16, 16});
      tensors[block + ".self_attn.k_proj.weight"] = scratch_ramp({8, 16});
      tensors[block + ".self_attn.v_proj.weight"] = scratch_ramp({8, 16});
      tensors[block + ".self_attn.o_proj.weight"] = scratch_ramp({16, 16});
      tensors[block + ".mlp.gate_proj.weight"] = scratch_ramp({24, 16});
      tensors[block + ".mlp.up_proj.weight"] = scratch_ramp({24, 16});
      tensors[block + ".mlp.down_proj.weight"] = scratch_ramp({16, 24});
    }
  }
  ~ScratchModel() { std::filesystem::remove_all(directory_); }
  ScratchModel(const ScratchModel&) = delete;
  ScratchModel& operator=(const ScratchModel&) = delete;

  // A tensor of this name (its ending) in every block.
  void add_to_blocks(const std::string& ending, const ScratchTensor& tensor) {
    for (const char* block : {"model.layers.0.", "model.layers.1."}) tensors[block + ending] = tensor;
  }

  Checkpoint open() const {
    write();
    return open_checkpoint(system_io(), directory_.string());
  }
  // Where a family stacks matrices as `find_slabs` says.
  Checkpoint open(FindSlabs find_slabs) const {
    write();
    return Checkpoint::open(system_io(), directory_.string(), nullptr, find_slabs);
  }

  Json config;
  std::map<std::string, ScratchTensor> tensors;

 private:
  void write() const {
    std::filesystem::create_directories(directory_);
    std::ofstream(directory_ / "config.json") << config.dump(1);
    Json header = Json::object();
    std::string bytes;
    for (const auto& [name, tensor] : tensors) {
      Json shape = Json::array();
      for (const std::int64_t extent : tensor.shape) shape.push_back(extent);
      const auto begin = static_cast<std::int64_t>(bytes.size());
      bytes += tensor.bytes;
      header[name] =
          Json::object({{"dtype", tensor.dtype},
                        {"shape", shape},
                        {"data_offsets", Json::array({begin, static_cast<std::int64_t>(bytes.size())})}});
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const std::uint64_t length = text.size();
    std::ofstream file(directory_ / "model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof length);
    file << text << bytes;
  }

  std::filesystem::path directory_;
};

// The same as an OLMo 2: norms behind the mixers and over all heads of q and of k.
class ScratchOlmo2 : public ScratchModel {
 public:
  ScratchOlmo2() : ScratchModel("olmo2", "Olmo2ForCausalLM") {
    for (const char* block : {"model.layers.0.", "model.layers.1."})
      tensors.erase(block + std::string("input_layernorm.weight"));
    add_to_blocks("post_feedforward_layernorm.weight", scratch_ramp({16}));
    add_to_blocks("self_attn.q_norm.weight", scratch_ramp({16}));
    add_to_blocks("self_attn.k_norm.weight", scratch_ramp({8}));
  }
};

// The same as a Cohere 2: attention and MLP side by side, of one layer norm.
class ScratchCohere2 : public ScratchModel {
 public:
  ScratchCohere2() : ScratchModel("cohere2", "Cohere2ForCausalLM") {
    for (const char* block : {"model.layers.0.", "model.layers.1."})
      tensors.erase(block + std::string("post_attention_layernorm.weight"));
    config["sliding_window"] = 5;
    config["logit_scale"] = 0.25;
  }
};

// The same as a Gemma 3: norms of 1 + w before and behind each mixer, and over heads.
class ScratchGemma3 : public ScratchModel {
 public:
  ScratchGemma3() : ScratchModel("gemma3_text", "Gemma3ForCausalLM") {
    for (const char* norm : {"pre_feedforward_layernorm", "post_feedforward_layernorm"})
      add_to_blocks(norm + std::string(".weight"), scratch_ramp({16}));
    for (const char* norm : {"self_attn.q_norm", "self_attn.k_norm"})
      add_to_blocks(norm + std::string(".weight"), scratch_ramp({4}));
    config["head_dim"] = 4;
    config["hidden_act"] = nullptr;
    config["query_pre_attn_scalar"] = 16;
    config["sliding_window"] = 5;
  }
};

// Of each block.
inline std::vector<std::int64_t> windows_of(const ModelSpec& spec) {
  std::vector<std::int64_t> found;
  for (const BlockSpec& block : spec.blocks) found.push_back(block.pages.window);
  return found;
}

// The error of a call as its kind and sentence: "unsupported|file: where: message"; empty when it succeeds.
template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(kind_name(error.kind())) + "|" + error.what();
  }
  return "";
}

// A LLaVA's around the config of a ScratchModel's Llama, with a tower of two blocks.
inline Json llava_config(Json text) {
  for (const char* key : {"architectures", "model_type", "tie_word_embeddings"}) text.erase(key);
  text["model_type"] = "llama";
  return Json::object({{"architectures", Json::array({"LlavaForConditionalGeneration"})},
                       {"model_type", "llava"},
                       {"image_token_index", 31},
                       {"vision_config", Json::object({{"num_hidden_layers", 2}})},
                       {"text_config", std::move(text)}});
}

}  // namespace llmq

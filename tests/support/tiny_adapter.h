// An adapter in PEFT's form, of fixed random numbers, for a model of any size: what tests fold, serve and
// bend.
#pragma once
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "io/safetensors.h"
#include "model/model_spec.h"

namespace llmq::testing {

struct TinyAdapter {
  std::int64_t rank = 4;
  Json config = Json::object({{"peft_type", "LORA"},
                              {"r", 4},
                              {"lora_alpha", 8},
                              {"target_modules", Json::array({"q_proj", "k_proj", "v_proj", "o_proj",
                                                              "gate_proj", "up_proj", "down_proj"})},
                              {"bias", "none"},
                              {"task_type", "CAUSAL_LM"},
                              {"base_model_name_or_path", "somewhere"},
                              {"modules_to_save", nullptr},
                              {"use_dora", false}});
  std::uint64_t seed = 1;
  float size = 0.3f;               // the matrices hold numbers in [-size, size)
  std::set<std::string> left_out;  // tensors
  std::vector<TensorDeclaration> tensors;
  std::vector<std::vector<float>> values;  // beside them; write() makes those of the model's linears

  // Of every linear of the model that target_modules names.
  void make(const ModelSpec& spec) {
    std::uint64_t state = seed;
    const auto random = [&](std::int64_t count) {
      std::vector<float> numbers;
      for (std::int64_t i = 0; i < count; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
        numbers.push_back(size * (static_cast<float>(state >> 40) * 0x1p-23f - 1));
      }
      return numbers;
    };
    for (const BlockSpec& block : spec.blocks)
      for (const LinearSpec& linear : block.linears) {
        const std::string name = linear.module.substr(linear.module.rfind('.') + 1);
        const Json* targets = config.find("target_modules");
        bool named = false;
        if (targets->is_array())
          for (const Json& target : targets->items()) named = named || target == Json(name);
        if (!named) continue;
        tensors.push_back({"base_model.model." + linear.module + ".lora_A.weight",
                           DType::kF32,
                           {rank, linear.in_features}});
        values.push_back(random(rank * linear.in_features));
        tensors.push_back({"base_model.model." + linear.module + ".lora_B.weight",
                           DType::kF32,
                           {linear.out_features, rank}});
        values.push_back(random(rank * linear.out_features));
      }
  }

  std::string write(const std::filesystem::path& directory) const {
    std::filesystem::create_directories(directory);
    std::ofstream(directory / "adapter_config.json") << config.dump(2);
    std::vector<TensorDeclaration> kept;
    for (const TensorDeclaration& tensor : tensors)
      if (left_out.count(tensor.name) == 0) kept.push_back(tensor);
    SafetensorsWriter writer(system_io(), Path(directory.string()) / "adapter_model.safetensors", kept,
                             {{"format", "pt"}});
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (left_out.count(tensors[i].name) == 0)
        writer.add(tensors[i].name, std::as_bytes(std::span(values[i])));
    writer.finish();
    return directory.string();
  }
};

inline std::string write_tiny_adapter(const ModelSpec& spec, const std::filesystem::path& directory,
                                      std::uint64_t seed = 1, float size = 0.3f) {
  TinyAdapter adapter;
  adapter.seed = seed;
  adapter.size = size;
  adapter.make(spec);
  return adapter.write(directory);
}

}  // namespace llmq::testing

#include "cli/planted_outliers.h"

#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "cli/program.h"

namespace llmq::testing {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

void plant_outliers(const std::string& model, const std::vector<std::size_t>& channels, float gain) {
  const std::string path = model + "/model.safetensors";
  std::string file = read_file(path);
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  const Json header = Json::parse(file.substr(8, length), path);
  for (const auto& [name, tensor] : header.members()) {
    const bool norm = contains(name, "input_layernorm") || contains(name, "post_attention_layernorm");
    const bool reader = contains(name, "q_proj") || contains(name, "k_proj") || contains(name, "v_proj") ||
                        contains(name, "gate_proj") || contains(name, "up_proj");
    if (!norm && !reader) continue;
    if (tensor.at("dtype").as_string() != "F32") throw std::runtime_error(name + " is not F32");
    const auto begin = static_cast<std::size_t>(tensor.at("data_offsets").items().at(0).as_integer());
    const auto end = static_cast<std::size_t>(tensor.at("data_offsets").items().at(1).as_integer());
    const auto width = static_cast<std::size_t>(tensor.at("shape").items().back().as_integer());
    for (std::size_t row = 0; row < (end - begin) / sizeof(float) / width; ++row)
      for (const std::size_t channel : channels) {
        char* const place = file.data() + 8 + length + begin + (row * width + channel) * sizeof(float);
        float value = 0;
        std::memcpy(&value, place, sizeof value);
        value = norm ? value * gain : value / gain;
        std::memcpy(place, &value, sizeof value);
      }
  }
  write_file(path, file);
}

}  // namespace llmq::testing

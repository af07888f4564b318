#include "cli/planted_outliers.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <stdexcept>
#include <vector>

#include "cli/program.h"

namespace llmq::testing {
namespace {

// A safetensors file in memory.
struct ModelFile {
  std::string bytes;
  Json header;
  std::size_t start = 0;

  explicit ModelFile(const std::string& path) : bytes(read_file(path)) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    header = Json::parse(bytes.substr(8, length), path);
    start = 8 + length;
  }

  std::vector<float> values(const std::string& name) const {
    const Json& tensor = header.at(name);
    if (tensor.at("dtype").as_string() != "F32") throw std::runtime_error(name + " is not F32");
    std::vector<float> found((place(name, 1) - place(name, 0)) / sizeof(float));
    std::memcpy(found.data(), bytes.data() + place(name, 0), found.size() * sizeof(float));
    return found;
  }
  void put(const std::string& name, const std::vector<float>& changed) {
    std::memcpy(bytes.data() + place(name, 0), changed.data(), changed.size() * sizeof(float));
  }

 private:
  std::size_t place(const std::string& name, std::size_t end) const {
    return start + static_cast<std::size_t>(header.at(name).at("data_offsets").items().at(end).as_integer());
  }
};

std::vector<std::size_t> largest(const std::vector<float>& gains, std::size_t count) {
  std::vector<std::size_t> order(gains.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return std::fabs(gains[a]) > std::fabs(gains[b]); });
  order.resize(count);
  return order;
}

void plant(ModelFile& model, const std::string& norm, const std::vector<std::string>& readers,
           std::size_t count, float factor) {
  std::vector<float> gains = model.values(norm);
  const std::vector<std::size_t> channels = largest(gains, count);
  for (const std::size_t channel : channels) gains[channel] *= factor;
  model.put(norm, gains);
  for (const std::string& reader : readers) {
    std::vector<float> weight = model.values(reader);
    for (std::size_t row = 0; row < weight.size(); row += gains.size())
      for (const std::size_t channel : channels) weight[row + channel] /= factor;
    model.put(reader, weight);
  }
}

}  // namespace

void plant_outliers(const std::string& model, std::size_t count, float factor) {
  const std::string path = model + "/model.safetensors";
  ModelFile file(path);
  for (int layer = 0;; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".",
                      attention = prefix + "self_attn.", mlp = prefix + "mlp.";
    if (file.header.find(prefix + "input_layernorm.weight") == nullptr) break;
    plant(file, prefix + "input_layernorm.weight",
          {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"}, count,
          factor);
    plant(file, prefix + "post_attention_layernorm.weight",
          {mlp + "gate_proj.weight", mlp + "up_proj.weight"}, count, factor);
  }
  write_file(path, file.bytes);
}

}  // namespace llmq::testing

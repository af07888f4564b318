#include "model/gguf/gguf_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/error.h"

namespace llmq {

void bad_gguf(const GgufHeader& header, std::string where, std::string message) {
  fail(ErrorKind::kBadInput, {std::move(message), header.file, std::move(where), {}});
}
void unsupported_gguf(const GgufHeader& header, std::string where, std::string message) {
  fail(ErrorKind::kUnsupported,
       {std::move(message), header.file, std::move(where), "use the model's safetensors checkpoint instead"});
}

namespace {
void check_gguf_size(const GgufHeader& header, const std::string& key, std::int64_t value) {
  constexpr std::int64_t kMaxExtent = std::int64_t{1} << 31;
  if (value < 1 || value > kMaxExtent)
    bad_gguf(header, key, fmt::format("is {}, not a sensible size", value));
}
}  // namespace

std::vector<std::int64_t> gguf_sizes_of_blocks(const GgufHeader& header, const std::string& key,
                                               std::int64_t blocks) {
  if (!header.at(key).is_array())
    return std::vector<std::int64_t>(static_cast<std::size_t>(blocks), gguf_size(header, key));
  const auto values = header.integers(key);
  if (std::ssize(values) != blocks)
    bad_gguf(header, key, fmt::format("has {} numbers for {} blocks", values.size(), blocks));
  for (const std::int64_t value : values) check_gguf_size(header, key, value);
  return {values.begin(), values.end()};
}

std::int64_t gguf_size(const GgufHeader& header, const std::string& key) {
  std::int64_t value = 0;
  if (header.at(key).is_array()) {
    const auto values = header.integers(key);
    if (values.empty()) bad_gguf(header, key, "is an empty array");
    value = values.front();
    for (const std::int64_t other : values)
      if (other != value) unsupported_gguf(header, key, "differs between layers");
  } else {
    value = header.integer(key);
  }
  check_gguf_size(header, key, value);
  return value;
}

std::int64_t gguf_window(const GgufHeader& header) {
  const std::string key = std::string(header.string("general.architecture")) + ".attention.sliding_window";
  return header.find_integer(key).value_or(0);
}

Json gguf_layer_types(const GgufHeader& header, std::int64_t blocks, std::int64_t period) {
  const std::string key =
      std::string(header.string("general.architecture")) + ".attention.sliding_window_pattern";
  std::vector<std::int64_t> flags;
  if (const GgufValue* const said = header.find(key); said != nullptr && said->is_array()) {
    flags = header.integers(key);
    if (std::ssize(flags) != blocks)
      bad_gguf(header, key, fmt::format("has {} flags for {} blocks", flags.size(), blocks));
    for (const std::int64_t flag : flags)
      if (flag != 0 && flag != 1) bad_gguf(header, key, fmt::format("has {} for a flag", flag));
  } else if (said != nullptr) {
    period = gguf_size(header, key);
  }
  Json types = Json::array();
  for (std::int64_t i = 0; i < blocks; ++i) {
    const bool windowed = flags.empty() ? (i + 1) % period != 0 : flags[static_cast<std::size_t>(i)] != 0;
    types.push_back(windowed ? "sliding_attention" : "full_attention");
  }
  return types;
}

const GgufTensor* find_gguf_tensor(const GgufHeader& header, std::string_view name) {
  const auto found = std::find_if(header.tensors.begin(), header.tensors.end(),
                                  [&](const GgufTensor& tensor) { return tensor.name == name; });
  return found == header.tensors.end() ? nullptr : &*found;
}

void add_gguf_experts(const GgufHeader& header, const char* count, Json& config) {
  const std::string architecture(header.string("general.architecture"));
  config[count] = gguf_size(header, architecture + ".expert_count");
  config["num_experts_per_tok"] = gguf_size(header, architecture + ".expert_used_count");
}

bool has_gguf_biases(const GgufHeader& header, std::initializer_list<const char*> stems) {
  std::size_t present = 0;
  for (const char* stem : stems)
    present += find_gguf_tensor(header, fmt::format("blk.0.{}.bias", stem)) ? 1u : 0u;
  if (present != 0 && present != stems.size())
    unsupported_gguf(header, "blk.0", "some linears of a kind have a bias and some have none");
  return present != 0;
}

void refuse_gguf_biases(const GgufHeader& header, const char* model) {
  if (has_gguf_biases(header, {"attn_q", "attn_k", "attn_v", "attn_output"}) ||
      has_gguf_biases(header, {"ffn_gate", "ffn_up", "ffn_down"}))
    unsupported_gguf(header, "blk.0", fmt::format("a {} model with biases", model));
}

}  // namespace llmq

// A scratch model whose q_proj are packed as a case of packed_*.json says.
#pragma once
#include <gmock/gmock.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/threads.h"
#include "scratch_model.h"

namespace llmq {

inline ThreadPool& threads() {
  static ThreadPool pool(3);
  return pool;
}

inline const std::string kModule = "model.layers.0.self_attn.q_proj";
inline const std::string kOther = "model.layers.1.self_attn.q_proj";

inline Json load_cases(const char* file) {
  const Path path = Path(LLMQ_SOURCE_DIR) / "tests/unit/model" / file;
  return Json::parse(read_text(system_io(), path), path.string());
}

inline std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

// The tensors of one case, as those of `module`.
inline void add_packed(ScratchModel& model, const std::string& module, const Json& one) {
  for (const auto& [name, value] : one.at("tensors").members()) {
    std::vector<std::int64_t> shape;
    for (const Json& extent : value.at("shape").items()) shape.push_back(extent.as_integer());
    model.tensors[module + "." + name] = {value.at("dtype").as_string(), shape,
                                          from_hex(value.at("hex").as_string())};
  }
}

// Both blocks' q_proj become the case's packed module.
inline void pack_queries(ScratchModel& model, const Json& packed_case) {
  model.config["quantization_config"] = packed_case.at("config");
  for (const std::string& module : {kModule, kOther}) {
    model.tensors.erase(module + ".weight");
    add_packed(model, module, packed_case);
  }
}

// Every column in group 0 but one.
inline ScratchTensor group_index(std::int64_t columns, std::int32_t third) {
  std::vector<std::int32_t> index(static_cast<std::size_t>(columns));
  index[3] = third;
  return scratch_tensor<std::int32_t>("I32", {columns}, index);
}

// The model is refused in words that begin as `found` does before its star, and hold what stands behind it.
inline void expect_refused(ScratchModel& model, const std::string& found) {
  const std::string said = error_of([&] { ModelSpec::read(model.open()); });
  const auto star = found.find('*');
  EXPECT_THAT(said, ::testing::StartsWith(found.substr(0, star)));
  EXPECT_THAT(said, ::testing::HasSubstr(found.substr(star + 1)));
}

}  // namespace llmq

// What the golden cases of the formats share: the files that the libraries' scripts wrote, and bytes as they
// spell them.
#pragma once
#include <fmt/core.h>

#include <fstream>
#include <span>
#include <sstream>
#include <string>

#include "base/json.h"
#include "tensor/tensor_view.h"

namespace llmq {

inline Json golden_cases(const std::string& name) {
  const std::string path = LLMQ_SOURCE_DIR "/tests/golden/formats/" + name;
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return Json::parse(text.str(), path);
}

inline std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text;
}

inline Json shape_json(const Shape& shape) {
  Json extents = Json::array();
  for (int axis = 0; axis < shape.rank(); ++axis) extents.push_back(shape[axis]);
  return extents;
}

}  // namespace llmq

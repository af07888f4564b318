// The models beside this file, each a folder that a script of tests/interop wrote; a test over all of them
// needs no list.
#pragma once
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/io.h"
#include "base/json.h"

namespace llmq::testing {

inline Path golden_folder() { return Path(LLMQ_SOURCE_DIR) / "tests/golden/models"; }

inline std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_folder()))
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// Those that nobody quantized.
inline std::vector<std::string> dense_golden_names() {
  std::vector<std::string> names = golden_names();
  std::erase_if(names, [](const std::string& name) {
    const Path config = golden_folder() / name / "model/config.json";
    return Json::parse(read_text(system_io(), config), config.string()).find("quantization_config") !=
           nullptr;
  });
  return names;
}

// "qwen3-biases-window" as a part of a test's name.
inline std::string as_test_name(std::string model) {
  std::replace(model.begin(), model.end(), '-', '_');
  return model;
}

}  // namespace llmq::testing

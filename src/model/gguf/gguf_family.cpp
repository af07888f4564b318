#include "model/gguf/gguf_family.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "model/gguf/gguf_fields.h"

namespace llmq {
namespace {

// "llama, qwen2 and qwen3"; of those alone that read windows, if `windowed`.
std::string architectures(bool windowed) {
  std::vector<std::string_view> names;
  for (const Family* family : families())
    if (family->gguf != nullptr && (!windowed || family->gguf->windowed) &&
        std::find(names.begin(), names.end(), family->gguf->architecture) == names.end())
      names.emplace_back(family->gguf->architecture);
  std::string text;
  for (const std::string_view name : names)
    text += fmt::format("{}{}", text.empty() ? "" : name == names.back() ? " and " : ", ", name);
  return text;
}

}  // namespace

const Family& family_of_gguf(const GgufHeader& header) {
  const std::string architecture(header.string("general.architecture"));
  const bool windowed = gguf_window(header) > 0;
  bool known = false;
  for (const Family* family : families()) {
    if (family->gguf == nullptr || architecture != family->gguf->architecture) continue;
    if (family->gguf->windowed == windowed) return *family;
    known = true;
  }
  if (known)
    unsupported_gguf(header, architecture + ".attention.sliding_window",
                     fmt::format("sliding windows are read for {} only", architectures(true)));
  unsupported_gguf(header, "general.architecture",
                   fmt::format("architecture \"{}\" is not read from GGUF; {} are",
                               architecture.substr(0, 64), architectures(false)));
}

const GgufFamily* gguf_family(std::string_view model_type) {
  for (const Family* family : families())
    if (model_type == family->model_type) return family->gguf;
  return nullptr;
}

}  // namespace llmq

// What a file is that should have been a checkpoint and is not: a Git LFS pointer, a web page, an archive, a
// pickle, another format.
//
// Downloads fail in few ways, and each leaves a file that would otherwise only read as "header too large".
#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/io.h"

namespace llmq {

struct ForeignFile {
  std::string what;  // "a Git LFS pointer, not the file it stands for"
  std::string hint;
};

// Looks at the first bytes only. Nothing when they belong to no known format, or to `expected`
// ("safetensors", "GGUF").
std::optional<ForeignFile> recognize_foreign_file(std::span<const std::byte> bytes,
                                                  std::string_view expected);

// A directory whose weights are in no container read here: says which ones are among `names`. `single` and
// `index` are what was looked for. Error(kUnsupported) for pickles, else Error(kBadInput).
[[noreturn]] void refuse_foreign_directory(const Path& directory, const std::vector<std::string>& names,
                                           const char* single, const char* index);

}  // namespace llmq

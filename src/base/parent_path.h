// The directory that holds a file or a directory.
#pragma once
#include <filesystem>

namespace llmq {

// "out" of "out/x"; "." of "x", which std::filesystem leaves empty.
inline std::filesystem::path parent_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

}  // namespace llmq

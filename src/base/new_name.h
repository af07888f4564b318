// Names for files that nobody else uses or has asked for, on this machine or another.
#pragma once
#include <fmt/format.h>

#include <random>
#include <string>
#include <string_view>

namespace llmq {

// `prefix` and 16 digits by chance.
inline std::string new_name(std::string_view prefix) {
  std::random_device draw;
  return fmt::format("{}{:08x}{:08x}", prefix, draw(), draw());
}

}  // namespace llmq

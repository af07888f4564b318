// The types of values in a GGUF file, by their number in it.
#pragma once
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "io/gguf.h"

namespace llmq {

struct GgufTypeRow {
  std::string_view name;
  std::uint64_t bytes;  // 0: varies
};
inline constexpr std::array<GgufTypeRow, 13> kGgufTypes{{{"uint8", 1},
                                                         {"int8", 1},
                                                         {"uint16", 2},
                                                         {"int16", 2},
                                                         {"uint32", 4},
                                                         {"int32", 4},
                                                         {"float32", 4},
                                                         {"bool", 1},
                                                         {"string", 0},
                                                         {"array", 0},
                                                         {"uint64", 8},
                                                         {"int64", 8},
                                                         {"float64", 8}}};

inline const GgufTypeRow& type_row(GgufType type) { return kGgufTypes[static_cast<std::size_t>(type)]; }

template <typename T>
T load_value(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace llmq

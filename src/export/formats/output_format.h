// The formats of an output, as far as they differ in what is written: GGUF is one file, all others are
// directories (export/formats/packed_formats.h).
#pragma once
#include <string_view>

namespace llmq {

inline constexpr const char* kGgufFormat = "gguf";
inline bool is_one_file(std::string_view format) { return format == kGgufFormat; }

}  // namespace llmq

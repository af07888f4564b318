// Kinds of tokens, by the numbers that SentencePiece's protobuf and GGUF's tokenizer.ggml.token_type give
// them; and the letter that stands for a space in a SentencePiece vocabulary.
#pragma once
#include <cstdint>
#include <string_view>

namespace llmq {

enum class TokenType : std::int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

constexpr bool is_token_type(std::int64_t number) { return number >= 1 && number <= 6; }

inline constexpr std::string_view kSpaceLetter = "\xe2\x96\x81";  // U+2581

}  // namespace llmq

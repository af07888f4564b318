// Sets of code points, and their spelling in bytes: as UTF-8, or as they stand inside a JSON string.
#pragma once
#include <vector>

#include "grammar/text_program.h"

namespace llmq {

struct CharacterRange {
  char32_t first, last;
};
using Characters = std::vector<CharacterRange>;

inline constexpr char32_t kLastCharacter = 0x10ffff;

// In order, without overlaps and surrogates.
Characters tidy(Characters characters);
Characters all_but(const Characters& tidied);

enum class Spelling : std::uint8_t {
  kPlain,
  kJsonString,  // quotes, backslashes and control characters by their shortest escape, anything else as it is
};

// One character of a tidied, non-empty set.
TextPlace one_of(TextProgramBuilder& builder, const Characters& tidied, Spelling spelling, TextPlace next);

}  // namespace llmq

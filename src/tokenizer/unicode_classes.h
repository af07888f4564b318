// What a code point is to a pre-tokenizer: letter, number, white space, word character.
//
// The table is Hugging Face tokenizers' own view, asked code point by code point
// (tests/interop/unicode_ranges.py), because its parts were built on different Unicode versions: the regular
// expressions on one, Rust's char::is_numeric on another, normalization on a third.
#pragma once
#include <cstdint>

namespace llmq {

enum UnicodeClass : std::uint8_t {
  kLetter = 1,          // \p{L}
  kNumber = 2,          // \p{N}
  kSpace = 4,           // \s, White_Space
  kRustNumeric = 8,     // what the Digits pre-tokenizer splits on
  kWordCharacter = 16,  // \w of added tokens with single_word, and of the Whitespace pre-tokenizer
  kInert = 32,          // decomposed or reordered in utf8proc's Unicode version, left alone in Hugging Face's
};

// Classes by code point; 0x110000 entries, built on first use.
const std::uint8_t* unicode_classes();

inline bool is_class(char32_t c, std::uint8_t mask) { return (unicode_classes()[c] & mask) != 0; }

}  // namespace llmq

// GPT-2's alphabet for bytes: printable Latin-1 stands for itself, the 68 other bytes for U+0100, U+0101, ...
// in order.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace llmq {

char32_t byte_to_letter(std::uint8_t byte);
std::optional<std::uint8_t> letter_to_byte(char32_t letter);

std::string to_byte_alphabet(std::string_view bytes);
// The bytes that `token` spells, or none when a character of it is not of this alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view token);

}  // namespace llmq

// Source: encoder.py of GPT-2, bytes_to_unicode().
#include "tokenizer/byte_alphabet.h"

#include <array>

#include "base/utf8.h"

namespace llmq {
namespace {

constexpr bool is_printable(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

struct Alphabet {
  std::array<std::uint16_t, 256> letter{};
  std::array<std::int16_t, 0x144> byte{};  // -1: not of the alphabet
};

constexpr Alphabet make_alphabet() {
  Alphabet made;
  for (auto& byte : made.byte) byte = -1;
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const unsigned letter = is_printable(byte) ? byte : next++;
    made.letter[byte] = static_cast<std::uint16_t>(letter);
    made.byte[letter] = static_cast<std::int16_t>(byte);
  }
  return made;
}

constexpr Alphabet kAlphabet = make_alphabet();
static_assert(kAlphabet.letter[' '] == 0x120 && kAlphabet.letter[0xad] == 0x143);

}  // namespace

char32_t byte_to_letter(std::uint8_t byte) { return kAlphabet.letter[byte]; }

std::optional<std::uint8_t> letter_to_byte(char32_t letter) {
  if (letter >= kAlphabet.byte.size() || kAlphabet.byte[letter] < 0) return std::nullopt;
  return static_cast<std::uint8_t>(kAlphabet.byte[letter]);
}

std::string to_byte_alphabet(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char byte : bytes) append_utf8(out, byte_to_letter(static_cast<std::uint8_t>(byte)));
  return out;
}

std::optional<std::string> from_byte_alphabet(std::string_view token) {
  std::string out;
  for (std::size_t i = 0; i < token.size();) {
    const CodePoint c = read_utf8(token, i);
    const auto byte = letter_to_byte(c.value);
    if (!byte) return std::nullopt;
    out.push_back(static_cast<char>(*byte));
    i += c.bytes;
  }
  return out;
}

}  // namespace llmq

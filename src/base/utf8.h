// UTF-8, as Unicode 15 table 3-7 defines it: reading code points from text already known to be valid, and
// finding where text is not.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/utf8_sequence.h"

namespace llmq {

struct CodePoint {
  char32_t value;
  unsigned bytes;
};

// The character at `at`; `text` is valid UTF-8 and `at` the start of a character inside it.
inline CodePoint read_utf8(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xe0) return {static_cast<char32_t>((lead & 0x1fu) << 6 | (byte(1) & 0x3fu)), 2};
  if (lead < 0xf0)
    return {static_cast<char32_t>((lead & 0x0fu) << 12 | (byte(1) & 0x3fu) << 6 | (byte(2) & 0x3fu)), 3};
  return {static_cast<char32_t>((lead & 0x07u) << 18 | (byte(1) & 0x3fu) << 12 | (byte(2) & 0x3fu) << 6 |
                                (byte(3) & 0x3fu)),
          4};
}

// The character that ends before `at` > 0.
inline CodePoint read_utf8_before(std::string_view text, std::size_t at) {
  std::size_t start = at - 1;
  while ((static_cast<unsigned char>(text[start]) & 0xc0) == 0x80) --start;
  return read_utf8(text, start);
}

void append_utf8(std::string& out, char32_t c);

// Offset of the first byte that is not UTF-8; none when all of it is.
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

// Holds back bytes until they are whole UTF-8 characters, for streamed output.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);  // what may be printed now
  std::string finish();                      // the rest, broken characters as U+FFFD

 private:
  std::string pending_;
};

}  // namespace llmq

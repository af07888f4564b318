// What a well-formed UTF-8 sequence is (Unicode table 3-7).
#pragma once
#include <cstddef>
#include <string_view>

namespace llmq {

// Bytes of the character that starts at `at`: 1 to 4; 0 when the bytes there are no character; -1 when the
// text ends inside one.
inline int utf8_length(std::string_view text, std::size_t at) {
  const unsigned char lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const int length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  for (int i = 1; i < length; ++i) {
    if (at + static_cast<std::size_t>(i) >= text.size()) return -1;
    const unsigned char byte = static_cast<unsigned char>(text[at + static_cast<std::size_t>(i)]);
    unsigned char low = 0x80, high = 0xbf;
    if (i == 1) {
      if (lead == 0xe0) low = 0xa0;
      if (lead == 0xed) high = 0x9f;
      if (lead == 0xf0) low = 0x90;
      if (lead == 0xf4) high = 0x8f;
    }
    if (byte < low || byte > high) return 0;
  }
  return length;
}

inline bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const int length = utf8_length(text, at);
    if (length <= 0) return false;
    at += static_cast<std::size_t>(length);
  }
  return true;
}

}  // namespace llmq

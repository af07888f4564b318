// What a well-formed UTF-8 sequence is.
#pragma once
#include <cstddef>
#include <string_view>

namespace llmq {

// Bytes of the valid UTF-8 sequence at `i`, 0 when there is none (Unicode table 3-7).
inline std::size_t utf8_length(std::string_view s, std::size_t i) {
  const auto byte = [&](std::size_t k) {
    return i + k < s.size() ? static_cast<unsigned char>(s[i + k]) : 0u;
  };
  const auto tail = [&](std::size_t k) { return (byte(k) & 0xc0u) == 0x80u; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return tail(1) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    const bool second = (lead != 0xe0 || byte(1) >= 0xa0) && (lead != 0xed || byte(1) < 0xa0);
    return second && tail(1) && tail(2) ? 3 : 0;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    const bool second = (lead != 0xf0 || byte(1) >= 0x90) && (lead != 0xf4 || byte(1) < 0x90);
    return second && tail(1) && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace llmq

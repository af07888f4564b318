// Well-formed sequences only: no overlong forms, no surrogates, nothing above U+10FFFF. ASCII is checked
// eight bytes at a time.
#include "base/utf8.h"

#include <cstring>

namespace llmq {

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xc0 | c >> 6);
  } else {
    if (c < 0x10000) {
      put(0xe0 | c >> 12);
    } else {
      put(0xf0 | c >> 18);
      put(0x80 | (c >> 12 & 0x3f));
    }
    put(0x80 | (c >> 6 & 0x3f));
  }
  put(0x80 | (c & 0x3f));
}

std::optional<std::size_t> first_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t word = 0;
    if (at + 8 <= text.size()) {
      std::memcpy(&word, text.data() + at, 8);
      if ((word & 0x8080808080808080u) == 0) {
        at += 8;
        continue;
      }
    }
    const int length = utf8_length(text, at);
    if (length <= 0) return at;
    at += static_cast<std::size_t>(length);
  }
  return std::nullopt;
}

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  std::string out;
  std::size_t at = 0;
  while (at < pending_.size()) {
    const int length = utf8_length(pending_, at);
    if (length < 0) break;  // the rest of this character may still come
    if (length == 0) {
      out += "\xef\xbf\xbd";
      ++at;
    } else {
      out.append(pending_, at, static_cast<std::size_t>(length));
      at += static_cast<std::size_t>(length);
    }
  }
  pending_.erase(0, at);
  return out;
}

std::string Utf8Stream::finish() {
  std::string out;
  if (!pending_.empty()) out = "\xef\xbf\xbd";
  pending_.clear();
  return out;
}

}  // namespace llmq

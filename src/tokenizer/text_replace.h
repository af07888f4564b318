// Every occurrence of one string replaced by another, left to right, in one pass.
#pragma once
#include <string>
#include <string_view>

namespace llmq {

inline std::string replace_all(std::string_view text, std::string_view needle, std::string_view content) {
  std::string out;
  std::size_t done = 0;
  for (std::size_t at = text.find(needle); at != std::string_view::npos; at = text.find(needle, done)) {
    out += text.substr(done, at - done);
    out += content;
    done = at + needle.size();
  }
  out += text.substr(done);
  return out;
}

}  // namespace llmq

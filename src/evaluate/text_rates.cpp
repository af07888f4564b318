#include "evaluate/text_rates.h"

#include <cmath>
#include <numbers>

#include "base/utf8.h"

namespace llmq {
namespace {

// What \s of Python's `re` is among the characters of a str.
bool is_blank(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

}  // namespace

std::int64_t count_words(std::string_view text) {
  std::int64_t words = 1;
  bool blank = false;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = read_utf8(text, at);
    if (is_blank(c.value) && !blank) ++words;
    blank = is_blank(c.value);
    at += c.bytes;
  }
  return words;
}

TextRates text_rates(std::string_view text, const PerplexityResult& result) {
  const double nats = result.mean_nll * static_cast<double>(result.scored_tokens);
  const double by_byte = nats / static_cast<double>(text.size());
  return {std::exp(nats / static_cast<double>(count_words(text))), std::exp(by_byte),
          by_byte / std::numbers::ln2};
}

}  // namespace llmq

#include "grammar/characters.h"

#include <algorithm>

#include "base/json.h"
#include "base/utf8.h"

namespace llmq {
namespace {

constexpr char32_t kBelowSurrogates = 0xd7ff, kAboveSurrogates = 0xe000;

// The bytes of code points of one range whose UTF-8 differs in ranges of bytes only; others are cut in two.
// Source: the table of well-formed sequences; RE2 and Rust's regex do the same.
void add_range(TextProgramBuilder& builder, CharacterRange range, TextPlace next,
               std::vector<TextPlace>& ways) {
  for (const char32_t border : {0x7fu, 0x7ffu, 0xffffu})
    if (range.first <= border && range.last > border) {
      add_range(builder, {range.first, border}, next, ways);
      return add_range(builder, {border + 1, range.last}, next, ways);
    }
  const int bytes = range.last <= 0x7f ? 1 : range.last <= 0x7ff ? 2 : range.last <= 0xffff ? 3 : 4;
  for (int i = 1; i < bytes; ++i) {
    const char32_t rest = (char32_t{1} << (6 * i)) - 1;
    if ((range.first & ~rest) == (range.last & ~rest)) continue;
    if ((range.first & rest) != 0) {
      add_range(builder, {range.first, range.first | rest}, next, ways);
      return add_range(builder, {(range.first | rest) + 1, range.last}, next, ways);
    }
    if ((range.last & rest) != rest) {
      add_range(builder, {range.first, (range.last & ~rest) - 1}, next, ways);
      return add_range(builder, {range.last & ~rest, range.last}, next, ways);
    }
  }
  std::string low, high;
  append_utf8(low, range.first);
  append_utf8(high, range.last);
  for (std::size_t i = low.size(); i-- > 0;)
    next = builder.byte(static_cast<std::uint8_t>(low[i]), static_cast<std::uint8_t>(high[i]), next);
  ways.push_back(next);
}

bool escaped_in_json(char32_t c) { return c < 0x20 || c == '"' || c == '\\'; }

}  // namespace

Characters tidy(Characters characters) {
  std::sort(characters.begin(), characters.end(),
            [](const CharacterRange& a, const CharacterRange& b) { return a.first < b.first; });
  Characters merged;
  for (const CharacterRange& range : characters) {
    if (!merged.empty() && range.first <= merged.back().last + 1)
      merged.back().last = std::max(merged.back().last, range.last);
    else
      merged.push_back(range);
  }
  Characters result;
  for (const CharacterRange& range : merged) {
    if (range.first <= kBelowSurrogates)
      result.push_back({range.first, std::min(range.last, kBelowSurrogates)});
    if (range.last >= kAboveSurrogates)
      result.push_back({std::max(range.first, kAboveSurrogates), range.last});
  }
  return result;
}

Characters all_but(const Characters& tidied) {
  Characters result;
  char32_t from = 0;
  for (const CharacterRange& range : tidied) {
    if (range.first > from) result.push_back({from, range.first - 1});
    from = range.last + 1;
  }
  if (from <= kLastCharacter) result.push_back({from, kLastCharacter});
  return tidy(std::move(result));
}

TextPlace one_of(TextProgramBuilder& builder, const Characters& tidied, Spelling spelling, TextPlace next) {
  std::vector<TextPlace> ways;
  for (const CharacterRange& range : tidied) {
    if (spelling == Spelling::kPlain) {
      add_range(builder, range, next, ways);
      continue;
    }
    char32_t from = range.first;
    for (char32_t c = range.first; c <= std::min(range.last, char32_t{'\\'}); ++c) {
      if (!escaped_in_json(c)) continue;
      if (c > from) add_range(builder, {from, c - 1}, next, ways);
      from = c + 1;
      const std::string quoted = Json(std::string(1, static_cast<char>(c))).dump();
      ways.push_back(builder.literal(std::string_view(quoted).substr(1, quoted.size() - 2), next));
    }
    if (from <= range.last) add_range(builder, {from, range.last}, next, ways);
  }
  return builder.either(ways);
}

}  // namespace llmq

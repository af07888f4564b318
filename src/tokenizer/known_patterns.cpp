// One function per alternative group; each returns where its match ends. See the expressions in the header.
#include "tokenizer/known_patterns.h"

#include "base/utf8.h"
#include "tokenizer/unicode_classes.h"

namespace llmq {

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string_view kLlama3Pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                                        R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kQwen2Pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
                                       R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

constexpr std::uint8_t kAny = kLetter | kNumber | kSpace;  // a character of none of these is "other"

// A window on the text with the class of the character at a place.
struct Scanner {
  std::string_view text;  // up to the end of the range
  const std::uint8_t* classes = unicode_classes();

  struct Seen {
    std::uint8_t kind;  // kLetter, kNumber, kSpace or 0
    unsigned bytes;     // 0 at the end
  };
  Seen at(std::size_t i) const {
    if (i >= text.size()) return {kSpace, 0};
    const unsigned char lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) return {static_cast<std::uint8_t>(classes[lead] & kAny), 1};
    const CodePoint c = read_utf8(text, i);
    return {static_cast<std::uint8_t>(classes[c.value] & kAny), c.bytes};
  }
  // End of the run of characters of that kind from i on.
  std::size_t run(std::size_t i, std::uint8_t kind) const {
    for (;;) {
      const Seen seen = at(i);
      if (seen.bytes == 0 || seen.kind != kind) return i;
      i += seen.bytes;
    }
  }
  char byte(std::size_t i) const { return i < text.size() ? text[i] : '\0'; }
  static bool is_newline(char c) { return c == '\r' || c == '\n'; }

  // 's|'t|'re|'ve|'m|'ll|'d at i, where text[i] is the apostrophe: bytes, 0 for none.
  std::size_t contraction(std::size_t i, bool fold_case) const {
    const auto lower = [&](char c) {
      return fold_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    };
    const char first = lower(byte(i + 1)), second = lower(byte(i + 2));
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    if ((first == 'r' || first == 'v') && second == 'e') return 3;
    if (first == 'l' && second == 'l') return 3;
    if (fold_case && byte(i + 1) == '\xc5' && byte(i + 2) == '\xbf') return 3;  // U+017F folds to s
    return 0;
  }

  // \s+(?!\S)|\s+ for the white space [i, end): all of it at the end of the text, else all but its last
  // character, if more than one.
  std::size_t space(std::size_t i, std::size_t end) const {
    if (end == text.size()) return end;
    const std::size_t last = end - read_utf8_before(text, end).bytes;
    return last > i ? last : end;
  }
};

std::size_t gpt2_match(const Scanner& scan, std::size_t i) {
  const char c = scan.text[i];
  if (c == '\'')
    if (const std::size_t bytes = scan.contraction(i, false); bytes != 0) return i + bytes;
  const Scanner::Seen seen = scan.at(i);
  if (c == ' ') {
    const Scanner::Seen next = scan.at(i + 1);
    if (next.kind != kSpace) return scan.run(i + 1 + next.bytes, next.kind);
  }
  const std::size_t end = scan.run(i + seen.bytes, seen.kind);
  return seen.kind == kSpace ? scan.space(i, end) : end;
}

std::size_t numbers(const Scanner& scan, std::size_t i, int most) {
  for (int count = 0; count < most; ++count) {
    const Scanner::Seen seen = scan.at(i);
    if (seen.bytes == 0 || seen.kind != kNumber) break;
    i += seen.bytes;
  }
  return i;
}

// [^\s\p{L}\p{N}]+[\r\n]* from i, where an "other" character stands
std::size_t others_and_newlines(const Scanner& scan, std::size_t i) {
  std::size_t end = scan.run(i, 0);
  while (Scanner::is_newline(scan.byte(end))) ++end;
  return end;
}

std::size_t llama3_space(const Scanner& scan, std::size_t i) {
  const std::size_t end = scan.run(i, kSpace);
  for (std::size_t last = end; last > i; --last)  // \s*[\r\n]+ ends after the last newline of the run
    if (Scanner::is_newline(scan.text[last - 1])) return last;
  return scan.space(i, end);
}

std::size_t llama3_match(const Scanner& scan, std::size_t i, int most_numbers) {
  const char c = scan.text[i];
  if (c == '\'')
    if (const std::size_t bytes = scan.contraction(i, true); bytes != 0) return i + bytes;
  const Scanner::Seen seen = scan.at(i);
  if (seen.kind == kLetter) return scan.run(i + seen.bytes, kLetter);
  if (seen.kind == kNumber) return numbers(scan, i, most_numbers);
  if (!Scanner::is_newline(c)) {
    const Scanner::Seen next = scan.at(i + seen.bytes);
    if (next.kind == kLetter) return scan.run(i + seen.bytes + next.bytes, kLetter);
    if (c == ' ' && next.bytes != 0 && next.kind == 0) return others_and_newlines(scan, i + 1);
  }
  return seen.kind == 0 ? others_and_newlines(scan, i) : llama3_space(scan, i);
}

}  // namespace

std::optional<KnownPattern> known_pattern(std::string_view regex) {
  if (regex == kGpt2Pattern) return KnownPattern::kGpt2;
  if (regex == kLlama3Pattern) return KnownPattern::kLlama3;
  if (regex == kQwen2Pattern) return KnownPattern::kQwen2;
  return std::nullopt;
}

void split_known(KnownPattern pattern, std::string_view text, TextRange range,
                 std::vector<TextRange>& words) {
  const Scanner scan{text.substr(0, range.end)};
  const int most_numbers = pattern == KnownPattern::kLlama3 ? 3 : 1;
  for (std::size_t i = range.begin; i < range.end;) {
    const std::size_t end =
        pattern == KnownPattern::kGpt2 ? gpt2_match(scan, i) : llama3_match(scan, i, most_numbers);
    words.push_back({i, end});
    i = end;
  }
}

}  // namespace llmq

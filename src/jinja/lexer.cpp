#include "jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "base/utf8.h"
#include "jinja/text.h"

namespace llmq::jinja {
namespace {

bool digit(char c) { return c >= '0' && c <= '9'; }
bool name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool hexadecimal(char c) { return digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

std::string normalized(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    out += source[i] == '\r' ? '\n' : source[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& file) : source_(normalized(source)), file_(file) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) read_data();
    add(TokenKind::kEnd);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void refuse(std::string message) const {
    fail(ErrorKind::kBadInput,
         {std::move(message), file_, "line " + std::to_string(line_), "mend the chat template"});
  }
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  void advance(std::size_t bytes) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_ + bytes), '\n'));
    at_ += bytes;
  }
  void skip_space() { advance(rest().size() - stripped_left(rest()).size()); }
  void add(TokenKind kind, std::string text = {}) { tokens_.push_back({kind, line_, std::move(text), 0, 0}); }

  // '-' or '+' where one stands, else 0.
  char sign() {
    const char c = at_ < source_.size() ? source_[at_] : '\0';
    if (c != '-' && c != '+') return '\0';
    ++at_;
    return c;
  }

  // Text up to a tag, without what the tag's sign takes of it.
  void data_before(std::size_t start, std::size_t end, char mark, bool block) {
    std::string_view text = std::string_view(source_).substr(start, end - start);
    if (mark == '-') {
      text = stripped_right(text);
    } else if (mark != '+' && block) {
      const std::size_t line = text.rfind('\n') + 1;  // npos + 1 is 0
      const bool starts_line = line > 0 || start == 0 || source_[start - 1] == '\n';
      if (starts_line && stripped_left(text.substr(line)).empty()) text = text.substr(0, line);
    }
    if (!text.empty()) add(TokenKind::kData, std::string(text));
  }

  void read_data() {
    const std::size_t start = at_;
    std::size_t open = start;
    for (;; ++open) {
      open = source_.find('{', open);
      if (open == std::string::npos || open + 1 >= source_.size()) {
        add(TokenKind::kData, source_.substr(start));
        advance(source_.size() - start);
        return;
      }
      if (source_[open + 1] == '%' || source_[open + 1] == '{' || source_[open + 1] == '#') break;
    }
    const char kind = source_[open + 1];
    at_ = open + 2;
    const char mark = sign();
    const std::size_t tag = at_;
    at_ = start;
    data_before(start, open, mark, kind != '{');
    advance(tag - start);
    if (kind == '#')
      read_comment();
    else if (kind != '%' || !read_raw())
      read_tag(kind == '%');
  }

  // Where a tag ends: its sign, then white space.
  void close(char mark, bool trims) {
    if (mark == '-') skip_space();
    if (mark == '\0' && trims && at_ < source_.size() && source_[at_] == '\n') advance(1);
  }

  void read_comment() {
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) refuse("a comment has no end");
    const char before = end > at_ ? source_[end - 1] : '\0';
    advance(end + 2 - at_);
    close(before == '-' || before == '+' ? before : '\0', true);
  }

  // {% raw %}: the text to {% endraw %} as it is.
  bool read_raw() {
    std::string_view text = stripped_left(rest());
    if (!text.starts_with("raw")) return false;
    text = stripped_left(text.substr(3));
    const bool minus = text.starts_with("-%}");
    if (!minus && !text.starts_with("%}")) return false;
    advance(rest().size() - text.size() + (minus ? 3 : 2));
    if (minus) skip_space();
    const std::size_t start = at_;
    for (std::size_t open = source_.find("{%", start); open != std::string::npos;
         open = source_.find("{%", open + 1)) {
      at_ = open + 2;
      const char mark = sign();
      text = stripped_left(rest());
      if (!text.starts_with("endraw")) continue;
      text = stripped_left(text.substr(6));
      const char last = !text.empty() && (text[0] == '-' || text[0] == '+') ? text[0] : '\0';
      if (!text.substr(last ? 1 : 0).starts_with("%}")) continue;
      const std::size_t end = source_.size() - text.size() + (last ? 3 : 2);
      at_ = start;
      data_before(start, open, mark, true);
      advance(end - start);
      close(last, true);
      return true;
    }
    at_ = start;
    refuse("a raw block has no end");
  }

  void read_tag(bool block) {
    add(block ? TokenKind::kBlockBegin : TokenKind::kOutputBegin);
    const std::string_view end = block ? "%}" : "}}";
    std::string open;  // brackets that wait for their partner
    for (;;) {
      skip_space();
      const std::string_view text = rest();
      if (text.empty()) refuse("a tag has no end");
      const char mark = text[0] == '-' || (block && text[0] == '+') ? text[0] : '\0';
      if (open.empty() && text.substr(mark ? 1 : 0).starts_with(end)) {
        advance(mark ? 3 : 2);
        add(block ? TokenKind::kBlockEnd : TokenKind::kOutputEnd);
        close(mark, block);
        return;
      }
      if (digit(text[0]))
        read_number();
      else if (name_start(text[0]))
        read_name();
      else if (text[0] == '"' || text[0] == '\'')
        read_string();
      else
        read_operator(open);
    }
  }

  void read_name() {
    std::size_t end = at_;
    while (end < source_.size() && (name_start(source_[end]) || digit(source_[end]))) ++end;
    add(TokenKind::kName, source_.substr(at_, end - at_));
    advance(end - at_);
  }

  void read_number() {
    const std::string_view text = rest();
    std::size_t end = 0;
    std::string digits;
    const auto take = [&](auto&& of_base) {
      while (end < text.size() &&
             (of_base(text[end]) || (text[end] == '_' && end + 1 < text.size() && of_base(text[end + 1])))) {
        if (text[end] != '_') digits += text[end];
        ++end;
      }
    };
    int base = 10;
    if (text.size() > 1 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) base = 16;
    if (base == 16) {
      end = 2;
      take(hexadecimal);
    } else {
      take(digit);
    }
    bool real = false;
    const bool member = at_ > 0 && source_[at_ - 1] == '.';
    if (base == 10 && !member) {
      if (end + 1 < text.size() && text[end] == '.' && digit(text[end + 1])) {
        real = true;
        digits += text[end++];
        take(digit);
      }
      std::size_t power = end + 1;
      if (end < text.size() && (text[end] == 'e' || text[end] == 'E')) {
        if (power < text.size() && (text[power] == '+' || text[power] == '-')) ++power;
        if (power < text.size() && digit(text[power])) {
          real = true;
          digits += 'e';
          if (text[power - 1] == '-') digits += '-';
          end = power;
          take(digit);
        }
      }
    }
    Token token{real ? TokenKind::kFloat : TokenKind::kInteger, line_, {}, 0, 0};
    const char* const last = digits.data() + digits.size();
    const auto result = real ? std::from_chars(digits.data(), last, token.real)
                             : std::from_chars(digits.data(), last, token.integer, base);
    if (result.ec != std::errc{} || result.ptr != last)
      refuse("the number " + std::string(text.substr(0, std::min(end, std::size_t{40}))) + " cannot be kept");
    tokens_.push_back(std::move(token));
    advance(end);
  }

  void read_string() {
    const char quote = source_[at_];
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) refuse("a string has no end");
    add(TokenKind::kString, unescaped(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    advance(end + 1 - at_);
  }

  // Python's escapes.
  std::string unescaped(std::string_view text) const {
    static constexpr std::string_view kLetters = "abfnrtv\\'\"", kValues = "\a\b\f\n\r\t\v\\'\"";
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\' || i + 1 == text.size()) {
        out += text[i];
        continue;
      }
      const char c = text[++i];
      const std::size_t known = kLetters.find(c);
      if (known != std::string_view::npos) {
        out += kValues[known];
      } else if (c == '\n') {
        continue;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const std::size_t width = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append(out, text, i + 1, width, 16);
        i += width;
      } else if (c >= '0' && c <= '7') {
        std::size_t width = 1;
        while (width < 3 && i + width < text.size() && text[i + width] >= '0' && text[i + width] <= '7')
          ++width;
        append(out, text, i, width, 8);
        i += width - 1;
      } else if (c == 'N') {
        refuse("the escape \\N is not known");
      } else {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  void append(std::string& out, std::string_view text, std::size_t at, std::size_t width, int base) const {
    std::uint32_t value = 0;
    const char* const end = text.data() + std::min(text.size(), at + width);
    const auto result = std::from_chars(text.data() + std::min(text.size(), at), end, value, base);
    if (result.ec != std::errc{} || result.ptr != end || text.size() < at + width || value > 0x10ffff ||
        (value >= 0xd800 && value < 0xe000))
      refuse("a string holds an escape that names no character");
    append_utf8(out, value);
  }

  void read_operator(std::string& open) {
    static constexpr std::array<std::string_view, 26> kOperators = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const std::string_view text = rest();
    const auto found = std::find_if(kOperators.begin(), kOperators.end(),
                                    [&](std::string_view name) { return text.starts_with(name); });
    if (found == kOperators.end()) refuse("a tag holds a character that means nothing there");
    const char c = (*found)[0];
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c)
        refuse(std::string("found '") + c + "' where no bracket is open for it");
      open.pop_back();
    }
    add(TokenKind::kOperator, std::string(*found));
    advance(found->size());
  }

  std::string source_;
  const std::string& file_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source, const std::string& file) {
  return Lexer(source, file).run();
}

}  // namespace llmq::jinja

#include "jinja/token_cursor.h"

#include <array>

#include "base/error.h"

namespace llmq::jinja {

bool TokenCursor::is(const Token& token, TokenKind kind, std::string_view text) {
  return token.kind == kind && token.text == text;
}

void TokenCursor::expect_operator(std::string_view text) {
  if (!skip_operator(text)) unexpected(text);
}

void TokenCursor::expect(TokenKind kind, std::string_view what) {
  if (current().kind != kind) unexpected(what);
  next();
}

std::string TokenCursor::expect_name() {
  if (current().kind != TokenKind::kName) unexpected("a name");
  return next().text;
}

void TokenCursor::refuse(const std::string& what) const {
  fail(ErrorKind::kBadInput, {"the chat template " + what, file_, place(), "mend the chat template"});
}

void TokenCursor::unsupported(const std::string& what) const {
  fail(ErrorKind::kUnsupported,
       {"the chat template uses " + what, file_, place(), "render the chat elsewhere and pass the text"});
}

void TokenCursor::unexpected(std::string_view wanted) const {
  static constexpr std::array<const char*, 11> kNames = {
      "text", "'{%'", "'%}'", "'{{'", "'}}'", "a name", "a string", "an integer", "a float", "", "its end"};
  const Token& token = current();
  std::string found = kNames[static_cast<std::size_t>(token.kind)];
  if (token.kind == TokenKind::kOperator || token.kind == TokenKind::kName)
    found = "'" + token.text.substr(0, 60) + "'";
  refuse("has " + found +
         (wanted.empty() ? std::string(" where it means nothing")
                         : " where " + std::string(wanted) + " should stand"));
}

}  // namespace llmq::jinja

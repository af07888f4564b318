// Where a parser stands in the tokens of a template, what it may expect there, and what it says of the rest.
#pragma once
#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/lexer.h"

namespace llmq::jinja {

class TokenCursor {
 public:
  TokenCursor(std::vector<Token> tokens, const std::string& file) : tokens_(std::move(tokens)), file_(file) {}

 protected:
  static constexpr int kMaxNesting = 100;  // of brackets and operators being parsed, and of statements

  // Counts what is being parsed, so that the parser's own recursion is bounded.
  struct Deeper {
    explicit Deeper(TokenCursor& cursor) : cursor_(cursor) {
      if (++cursor_.nesting_ > kMaxNesting)
        cursor_.refuse("nests deeper than " + std::to_string(kMaxNesting));
    }
    ~Deeper() { --cursor_.nesting_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    TokenCursor& cursor_;
  };

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }

  static bool is(const Token& token, TokenKind kind, std::string_view text);
  bool at_operator(std::string_view text) const { return is(current(), TokenKind::kOperator, text); }
  bool at_word(std::string_view text) const { return is(current(), TokenKind::kName, text); }
  bool skip_operator(std::string_view text) { return at_operator(text) && (next(), true); }
  bool skip_word(std::string_view text) { return at_word(text) && (next(), true); }
  void expect_operator(std::string_view text);
  void expect(TokenKind kind, std::string_view what);
  std::string expect_name();
  void step_back() { --at_; }

  std::string place() const { return "line " + std::to_string(current().line); }
  [[noreturn]] void refuse(const std::string& what) const;
  [[noreturn]] void unsupported(const std::string& what) const;
  [[noreturn]] void unexpected(std::string_view wanted = {}) const;

 private:
  std::vector<Token> tokens_;
  const std::string& file_;
  std::size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace llmq::jinja

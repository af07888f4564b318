// Recursive descent over the expressions of jinja2 3.1's parser.py, one function a level of precedence.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/syntax.h"
#include "jinja/token_cursor.h"

namespace llmq::jinja {

class ExpressionParser : public TokenCursor {
 public:
  using TokenCursor::TokenCursor;

 protected:
  using Made = std::unique_ptr<Expression>;

  Made make(ExpressionKind kind, int line, std::vector<Made> operands = {}, std::string name = {}) const;
  static std::vector<Made> list_of(Made a, Made b = nullptr, Made c = nullptr, Made d = nullptr);
  Made unary(ExpressionKind kind, int line, Made a, std::string name = {}) const;
  Made binary(ExpressionKind kind, int line, Made a, Made b, std::string name = {}) const;
  Made constant(int line, Value value) const;

  Made parse_expression();
  Made parse_or();
  Made parse_and();
  Made parse_not();
  Made parse_compare();
  Made parse_sum();
  Made parse_concat();
  Made parse_product();
  Made parse_power();
  Made parse_unary(bool with_filter);
  Made parse_primary();

  std::vector<Made> parse_separated(std::string_view end, bool pairs);
  bool at_tuple_end() const;
  Made parse_tuple(bool in_brackets);

  Made parse_postfix(Made made);
  Made parse_subscript(Made made, int line);
  Made parse_call(ExpressionKind kind, Made subject, int line, std::string name);
  std::string dotted_name();
  Made parse_filters(Made made);
  bool at_test_argument() const;
  Made parse_test(Made made);
};

}  // namespace llmq::jinja

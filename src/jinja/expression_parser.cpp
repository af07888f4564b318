#include "jinja/expression_parser.h"

#include <algorithm>
#include <array>
#include <utility>

namespace llmq::jinja {
namespace {

constexpr int kMaxExpressionDepth = 200;

}  // namespace

ExpressionParser::Made ExpressionParser::make(ExpressionKind kind, int line, std::vector<Made> operands,
                                              std::string name) const {
  auto made = std::make_unique<Expression>(Expression{kind, line, 1, std::move(name), {}, {}, {}});
  for (Made& operand : operands) {
    if (operand) made->depth = std::max(made->depth, operand->depth + 1);
    made->operands.push_back(std::move(operand));
  }
  if (made->depth > kMaxExpressionDepth)
    refuse("holds an expression deeper than " + std::to_string(kMaxExpressionDepth));
  return made;
}

std::vector<ExpressionParser::Made> ExpressionParser::list_of(Made a, Made b, Made c, Made d) {
  std::vector<Made> all;
  for (Made* one : {&a, &b, &c, &d}) all.push_back(std::move(*one));
  return all;
}

ExpressionParser::Made ExpressionParser::unary(ExpressionKind kind, int line, Made a,
                                               std::string name) const {
  std::vector<Made> operands;
  operands.push_back(std::move(a));
  return make(kind, line, std::move(operands), std::move(name));
}

ExpressionParser::Made ExpressionParser::binary(ExpressionKind kind, int line, Made a, Made b,
                                                std::string name) const {
  std::vector<Made> operands;
  operands.push_back(std::move(a));
  operands.push_back(std::move(b));
  return make(kind, line, std::move(operands), std::move(name));
}

ExpressionParser::Made ExpressionParser::constant(int line, Value value) const {
  Made made = make(ExpressionKind::kConstant, line);
  made->value = std::move(value);
  return made;
}

ExpressionParser::Made ExpressionParser::parse_expression() {
  const Deeper deeper(*this);
  Made left = parse_or();
  while (at_word("if")) {
    const int line = next().line;
    Made condition = parse_or();
    Made otherwise = skip_word("else") ? parse_expression() : nullptr;
    std::vector<Made> operands;
    operands.push_back(std::move(condition));
    operands.push_back(std::move(left));
    operands.push_back(std::move(otherwise));
    left = make(ExpressionKind::kConditional, line, std::move(operands));
  }
  return left;
}

ExpressionParser::Made ExpressionParser::parse_or() {
  Made left = parse_and();
  while (at_word("or")) {
    const int line = next().line;
    left = binary(ExpressionKind::kOr, line, std::move(left), parse_and());
  }
  return left;
}

ExpressionParser::Made ExpressionParser::parse_and() {
  Made left = parse_not();
  while (at_word("and")) {
    const int line = next().line;
    left = binary(ExpressionKind::kAnd, line, std::move(left), parse_not());
  }
  return left;
}

ExpressionParser::Made ExpressionParser::parse_not() {
  if (!at_word("not")) return parse_compare();
  const Deeper deeper(*this);
  const int line = next().line;
  return unary(ExpressionKind::kNot, line, parse_not());
}

ExpressionParser::Made ExpressionParser::parse_compare() {
  static constexpr std::array<std::string_view, 6> kOperators = {"==", "!=", "<", "<=", ">", ">="};
  const int line = current().line;
  std::vector<Made> operands;
  std::vector<std::string> names;
  operands.push_back(parse_sum());
  for (;;) {
    const bool known = current().kind == TokenKind::kOperator &&
                       std::find(kOperators.begin(), kOperators.end(), current().text) != kOperators.end();
    if (known || at_word("in")) {
      names.push_back(next().text);
    } else if (at_word("not") && is(ahead(), TokenKind::kName, "in")) {
      next();
      next();
      names.push_back("not in");
    } else {
      break;
    }
    operands.push_back(parse_sum());
  }
  if (names.empty()) return std::move(operands[0]);
  Made made = make(ExpressionKind::kCompare, line, std::move(operands));
  made->names = std::move(names);
  return made;
}

ExpressionParser::Made ExpressionParser::parse_sum() {
  Made left = parse_concat();
  while (at_operator("+") || at_operator("-")) {
    const Token& sign = next();
    left = binary(ExpressionKind::kArithmetic, sign.line, std::move(left), parse_concat(), sign.text);
  }
  return left;
}

ExpressionParser::Made ExpressionParser::parse_concat() {
  const int line = current().line;
  std::vector<Made> parts;
  parts.push_back(parse_product());
  while (skip_operator("~")) parts.push_back(parse_product());
  return parts.size() == 1 ? std::move(parts[0]) : make(ExpressionKind::kConcat, line, std::move(parts));
}

ExpressionParser::Made ExpressionParser::parse_product() {
  Made left = parse_power();
  while (at_operator("*") || at_operator("/") || at_operator("//") || at_operator("%")) {
    const Token& sign = next();
    left = binary(ExpressionKind::kArithmetic, sign.line, std::move(left), parse_power(), sign.text);
  }
  return left;
}

ExpressionParser::Made ExpressionParser::parse_power() {
  Made left = parse_unary(true);
  while (at_operator("**")) {
    const int line = next().line;
    left = binary(ExpressionKind::kArithmetic, line, std::move(left), parse_unary(true), "**");
  }
  return left;
}

ExpressionParser::Made ExpressionParser::parse_unary(bool with_filter) {
  Made made;
  if (at_operator("-") || at_operator("+")) {
    const Deeper deeper(*this);
    const Token& sign = next();
    const ExpressionKind kind = sign.text == "-" ? ExpressionKind::kNegate : ExpressionKind::kPlus;
    made = unary(kind, sign.line, parse_unary(false));
  } else {
    made = parse_primary();
  }
  made = parse_postfix(std::move(made));
  return with_filter ? parse_filters(std::move(made)) : std::move(made);
}

ExpressionParser::Made ExpressionParser::parse_primary() {
  const Token& token = current();
  const int line = token.line;
  switch (token.kind) {
    case TokenKind::kName: {
      next();
      const std::string& name = token.text;
      if (name == "true" || name == "True") return constant(line, {true});
      if (name == "false" || name == "False") return constant(line, {false});
      if (name == "none" || name == "None") return constant(line, {None{}});
      return make(ExpressionKind::kName, line, {}, name);
    }
    case TokenKind::kString: {
      std::string text;
      while (current().kind == TokenKind::kString) text += next().text;
      return constant(line, {std::make_shared<const std::string>(std::move(text))});
    }
    case TokenKind::kInteger:
      next();
      return constant(line, {token.integer});
    case TokenKind::kFloat:
      next();
      return constant(line, {token.real});
    case TokenKind::kOperator:
      if (skip_operator("(")) {
        Made made = parse_tuple(true);
        expect_operator(")");
        return made;
      }
      if (skip_operator("[")) return make(ExpressionKind::kList, line, parse_separated("]", false));
      if (skip_operator("{")) return make(ExpressionKind::kDict, line, parse_separated("}", true));
      break;
    default:
      break;
  }
  unexpected("an expression");
}

std::vector<ExpressionParser::Made> ExpressionParser::parse_separated(std::string_view end, bool pairs) {
  std::vector<Made> items;
  while (!at_operator(end)) {
    if (!items.empty()) expect_operator(",");
    if (at_operator(end)) break;
    items.push_back(parse_expression());
    if (pairs) {
      expect_operator(":");
      items.push_back(parse_expression());
    }
  }
  expect_operator(end);
  return items;
}

bool ExpressionParser::at_tuple_end() const {
  return current().kind == TokenKind::kOutputEnd || current().kind == TokenKind::kBlockEnd ||
         at_operator(")");
}

// One expression, or several with commas between them.
ExpressionParser::Made ExpressionParser::parse_tuple(bool in_brackets) {
  const int line = current().line;
  std::vector<Made> items;
  bool tuple = false;
  for (;;) {
    if (!items.empty()) expect_operator(",");
    if (at_tuple_end()) break;
    items.push_back(parse_expression());
    if (!at_operator(",")) break;
    tuple = true;
  }
  if (!tuple && !items.empty()) return std::move(items[0]);
  if (!tuple && !in_brackets) unexpected("an expression");
  return make(ExpressionKind::kTuple, line, std::move(items));
}

ExpressionParser::Made ExpressionParser::parse_postfix(Made made) {
  for (;;) {
    const int line = current().line;
    if (skip_operator(".")) {
      if (current().kind == TokenKind::kInteger) {
        Made index = constant(line, {next().integer});
        made = binary(ExpressionKind::kItem, line, std::move(made), std::move(index));
      } else {
        std::string name = expect_name();
        made = unary(ExpressionKind::kAttribute, line, std::move(made), std::move(name));
      }
    } else if (skip_operator("[")) {
      made = parse_subscript(std::move(made), line);
    } else if (at_operator("(")) {
      made = parse_call(ExpressionKind::kCall, std::move(made), line, {});
    } else {
      return made;
    }
  }
}

ExpressionParser::Made ExpressionParser::parse_subscript(Made made, int line) {
  const auto ends = [&] { return at_operator(":") || at_operator("]") || at_operator(","); };
  Made start = ends() ? nullptr : parse_expression();
  if (start && !at_operator(":")) {
    if (at_operator(",")) unsupported("several subscripts in one");
    expect_operator("]");
    return binary(ExpressionKind::kItem, line, std::move(made), std::move(start));
  }
  expect_operator(":");
  Made stop = ends() ? nullptr : parse_expression();
  Made step = skip_operator(":") && !ends() ? parse_expression() : nullptr;
  expect_operator("]");
  return make(ExpressionKind::kSlice, line,
              list_of(std::move(made), std::move(start), std::move(stop), std::move(step)));
}

// subject(arguments), subject | name(arguments), subject is name(arguments); the bracket is optional for
// the last two.
ExpressionParser::Made ExpressionParser::parse_call(ExpressionKind kind, Made subject, int line,
                                                    std::string name) {
  const Deeper deeper(*this);
  std::vector<Made> operands;
  std::vector<std::string> names;
  operands.push_back(std::move(subject));
  if (skip_operator("(")) {
    bool first = true;
    while (!at_operator(")")) {
      if (!first) expect_operator(",");
      first = false;
      if (at_operator(")")) break;
      if (at_operator("*") || at_operator("**")) unsupported("arguments unpacked from a list or a dict");
      if (current().kind == TokenKind::kName && is(ahead(), TokenKind::kOperator, "=")) {
        names.push_back(next().text);
        next();
      } else if (!names.empty()) {
        unexpected("a named argument");
      }
      operands.push_back(parse_expression());
    }
    expect_operator(")");
  }
  Made made = make(kind, line, std::move(operands), std::move(name));
  made->names = std::move(names);
  return made;
}

std::string ExpressionParser::dotted_name() {
  std::string name = expect_name();
  while (skip_operator(".")) name += "." + expect_name();
  return name;
}

ExpressionParser::Made ExpressionParser::parse_filters(Made made) {
  for (;;) {
    const int line = current().line;
    if (skip_operator("|")) {
      std::string name = dotted_name();
      made = parse_call(ExpressionKind::kFilter, std::move(made), line, std::move(name));
    } else if (at_word("is")) {
      made = parse_test(std::move(made));
    } else if (at_operator("(")) {
      made = parse_call(ExpressionKind::kCall, std::move(made), line, {});
    } else {
      return made;
    }
  }
}

bool ExpressionParser::at_test_argument() const {
  switch (current().kind) {
    case TokenKind::kName:
      return !at_word("else") && !at_word("or") && !at_word("and");
    case TokenKind::kString:
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return true;
    default:
      return at_operator("[") || at_operator("{");
  }
}

ExpressionParser::Made ExpressionParser::parse_test(Made made) {
  const int line = next().line;
  const bool negated = skip_word("not");
  std::string name = dotted_name();
  if (!at_operator("(") && at_test_argument()) {
    if (at_word("is")) refuse("chains two tests with 'is'");
    made =
        binary(ExpressionKind::kTest, line, std::move(made), parse_postfix(parse_primary()), std::move(name));
  } else {
    made = parse_call(ExpressionKind::kTest, std::move(made), line, std::move(name));
  }
  return negated ? unary(ExpressionKind::kNot, line, std::move(made)) : std::move(made);
}

}  // namespace llmq::jinja

// Recursive descent over the grammar of jinja2 3.1's parser.py, with a limit on how deep a tree may grow: all
// recursion over trees (here, in the evaluator, in destructors) is bounded by it.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "jinja/expression_parser.h"
#include "jinja/lexer.h"
#include "jinja/syntax.h"

namespace llmq::jinja {
namespace {

constexpr std::size_t kMaxTemplate = std::size_t{1} << 20;

class StatementParser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Body run() {
    Body body = parse_body({});
    if (current().kind != TokenKind::kEnd) unexpected();
    return body;
  }

 private:
  // Up to a block that starts with one of `ends` (then at its name), or to the end of the template.
  Body parse_body(std::initializer_list<std::string_view> ends) {
    const Deeper deeper(*this);
    Body body;
    for (;;) {
      const Token& token = current();
      if (token.kind == TokenKind::kData) {
        body.push_back(statement(StatementKind::kText));
        body.back().text = next().text;
      } else if (token.kind == TokenKind::kOutputBegin) {
        body.push_back(statement(StatementKind::kOutput));
        next();
        body.back().value = parse_tuple(false);
        expect(TokenKind::kOutputEnd, "'}}'");
      } else if (token.kind == TokenKind::kBlockBegin) {
        next();
        if (current().kind != TokenKind::kName) unexpected("the name of a block");
        if (std::find(ends.begin(), ends.end(), current().text) != ends.end()) return body;
        body.push_back(parse_block());
      } else {
        if (ends.size() != 0) refuse("ends before its {% " + std::string(*(ends.end() - 1)) + " %}");
        return body;
      }
    }
  }

  Statement statement(StatementKind kind) const {
    return Statement{kind, current().line, {}, nullptr, {}, {}, {}, false};
  }
  void end_block() { expect(TokenKind::kBlockEnd, "'%}'"); }
  // The body up to {% `end` %}, that block included.
  Body body_until(std::string_view end) {
    end_block();
    Body body = parse_body({end});
    next();
    return body;
  }

  Statement parse_block() {
    const std::string name = current().text;
    if (name == "if") return parse_if();
    if (name == "for") return parse_for();
    if (name == "set") return parse_set();
    if (name == "macro") return parse_macro();
    Statement made = statement(StatementKind::kScope);
    next();
    if (name == "break" || name == "continue") {
      if (loops_ == 0) refuse("has a {% " + name + " %} outside a loop");
      made.kind = name == "break" ? StatementKind::kBreak : StatementKind::kContinue;
    } else if (name == "generation") {  // what an assistant wrote; rendering does not need to know
      made.bodies.push_back(isolated("endgeneration"));
    } else if (name == "filter") {
      made.kind = StatementKind::kFilter;
      Made filters = make(ExpressionKind::kName, made.line, {}, std::string(kBlockText));
      std::string first = dotted_name();
      made.value =
          parse_filters(parse_call(ExpressionKind::kFilter, std::move(filters), made.line, std::move(first)));
      made.bodies.push_back(isolated("endfilter"));
    } else {
      step_back();
      unsupported("{% " + name.substr(0, 40) + " %}");
    }
    end_block();
    return made;
  }

  // A body that {% break %} cannot leave.
  Body isolated(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    ++scopes_;
    Body body = body_until(end);
    --scopes_;
    loops_ = loops;
    return body;
  }

  Statement parse_if() {
    Statement made = statement(StatementKind::kIf);
    next();
    for (;;) {
      made.conditions.push_back(parse_tuple(false));
      end_block();
      made.bodies.push_back(parse_body({"elif", "else", "endif"}));
      const std::string end = next().text;
      if (end == "elif") continue;
      if (end == "else") made.bodies.push_back(body_until("endif"));
      end_block();
      return made;
    }
  }

  void parse_targets(Statement& made, std::string_view end) {
    const bool bracket = skip_operator("(");
    for (;;) {
      std::string name = expect_name();
      for (const char* word : {"true", "false", "none", "True", "False", "None", "loop"})
        if (name == word) refuse("assigns to '" + name + "'");
      if (end == "=" && skip_operator(".")) name += "." + expect_name();
      made.names.push_back(std::move(name));
      if (!skip_operator(",")) break;
      made.unpacks = true;
      if (at_word(end) || at_operator(end) || at_operator(")")) break;
    }
    if (bracket) expect_operator(")");
  }

  Statement parse_for() {
    Statement made = statement(StatementKind::kFor);
    next();
    parse_targets(made, "in");
    if (!skip_word("in")) unexpected("'in'");
    made.value = parse_for_items();
    if (skip_word("if")) made.conditions.push_back(parse_expression());
    if (at_word("recursive")) unsupported("a recursive loop");
    ++loops_;
    ++scopes_;
    end_block();
    made.bodies.push_back(parse_body({"else", "endfor"}));
    --loops_;
    --scopes_;
    if (next().text == "else") made.bodies.push_back(isolated("endfor"));
    end_block();
    return made;
  }

  // No conditional expression there: its `if` belongs to the loop.
  Made parse_for_items() {
    const int line = current().line;
    std::vector<Made> items;
    items.push_back(parse_or());
    bool tuple = false;
    while (skip_operator(",")) {
      tuple = true;
      if (at_tuple_end() || at_word("recursive") || at_word("if")) break;
      items.push_back(parse_or());
    }
    return tuple ? make(ExpressionKind::kTuple, line, std::move(items)) : std::move(items[0]);
  }

  Statement parse_set() {
    Statement made = statement(StatementKind::kSet);
    next();
    parse_targets(made, "=");
    if (skip_operator("=")) {
      made.value = parse_tuple(false);
    } else {
      if (made.unpacks) unexpected("'='");
      made.kind = StatementKind::kSetBlock;
      made.value = parse_filters(make(ExpressionKind::kName, made.line, {}, std::string(kBlockText)));
      made.bodies.push_back(isolated("endset"));
    }
    end_block();
    return made;
  }

  Statement parse_macro() {
    Statement made = statement(StatementKind::kMacro);
    if (scopes_ > 0) unsupported("a macro inside a loop, a macro or a block");
    next();
    made.text = expect_name();
    expect_operator("(");
    while (!at_operator(")")) {
      if (!made.names.empty()) expect_operator(",");
      if (at_operator(")")) break;
      made.names.push_back(expect_name());
      made.conditions.push_back(skip_operator("=") ? parse_expression() : nullptr);
      if (!made.conditions.back() && made.names.size() > 1 && made.conditions[made.names.size() - 2])
        refuse("has a parameter without default behind one with");
    }
    expect_operator(")");
    made.bodies.push_back(isolated("endmacro"));
    end_block();
    return made;
  }

  int loops_ = 0, scopes_ = 0;
};

}  // namespace

Body parse_template(std::string_view source, const std::string& file) {
  if (source.size() > kMaxTemplate)
    fail(ErrorKind::kBadInput,
         {fmt::format("the chat template has {} bytes, more than {}", source.size(), kMaxTemplate),
          file,
          {},
          {}});
  if (const auto at = first_invalid_utf8(source))
    fail(ErrorKind::kBadInput, {"the chat template is not UTF-8", file, fmt::format("byte {}", *at), {}});
  return StatementParser(tokens_of(source, file), file).run();
}

}  // namespace llmq::jinja

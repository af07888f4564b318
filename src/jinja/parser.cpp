// Recursive descent over the grammar of jinja2 3.1's parser.py, with a limit on how deep a tree may grow: all
// recursion over trees (here, in the evaluator, in destructors) is bounded by it.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/utf8.h"
#include "jinja/lexer.h"
#include "jinja/syntax.h"

namespace llmq::jinja {
namespace {

constexpr int kMaxExpressionDepth = 200;
constexpr int kMaxNesting = 100;  // of brackets and operators being parsed, and of statements
constexpr std::size_t kMaxTemplate = std::size_t{1} << 20;

using Made = std::unique_ptr<Expression>;

class Parser {
 public:
  Parser(std::vector<Token> tokens, const std::string& file) : tokens_(std::move(tokens)), file_(file) {}

  Body run() {
    Body body = parse_body({});
    if (current().kind != TokenKind::kEnd) unexpected();
    return body;
  }

 private:
  // Counts what is being parsed, so that the parser's own recursion is bounded.
  struct Deeper {
    explicit Deeper(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxNesting)
        parser_.refuse("nests deeper than " + std::to_string(kMaxNesting));
    }
    ~Deeper() { --parser_.nesting_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    Parser& parser_;
  };

  // --- tokens

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  static bool is(const Token& token, TokenKind kind, std::string_view text) {
    return token.kind == kind && token.text == text;
  }
  bool at_operator(std::string_view text) const { return is(current(), TokenKind::kOperator, text); }
  bool at_word(std::string_view text) const { return is(current(), TokenKind::kName, text); }
  bool skip_operator(std::string_view text) { return at_operator(text) && (next(), true); }
  bool skip_word(std::string_view text) { return at_word(text) && (next(), true); }
  void expect_operator(std::string_view text) {
    if (!skip_operator(text)) unexpected(text);
  }
  void expect(TokenKind kind, std::string_view what) {
    if (current().kind != kind) unexpected(what);
    next();
  }
  std::string expect_name() {
    if (current().kind != TokenKind::kName) unexpected("a name");
    return next().text;
  }

  std::string place() const { return "line " + std::to_string(current().line); }
  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorKind::kBadInput, {"the chat template " + what, file_, place(), "mend the chat template"});
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    fail(ErrorKind::kUnsupported,
         {"the chat template uses " + what, file_, place(), "render the chat elsewhere and pass the text"});
  }
  [[noreturn]] void unexpected(std::string_view wanted = {}) const {
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

  // --- expressions

  Made make(ExpressionKind kind, int line, std::vector<Made> operands = {}, std::string name = {}) const {
    auto made = std::make_unique<Expression>(Expression{kind, line, 1, std::move(name), {}, {}, {}});
    for (Made& operand : operands) {
      if (operand) made->depth = std::max(made->depth, operand->depth + 1);
      made->operands.push_back(std::move(operand));
    }
    if (made->depth > kMaxExpressionDepth)
      refuse("holds an expression deeper than " + std::to_string(kMaxExpressionDepth));
    return made;
  }
  static std::vector<Made> list_of(Made a, Made b = nullptr, Made c = nullptr, Made d = nullptr) {
    std::vector<Made> all;
    for (Made* one : {&a, &b, &c, &d}) all.push_back(std::move(*one));
    return all;
  }
  Made unary(ExpressionKind kind, int line, Made a, std::string name = {}) const {
    std::vector<Made> operands;
    operands.push_back(std::move(a));
    return make(kind, line, std::move(operands), std::move(name));
  }
  Made binary(ExpressionKind kind, int line, Made a, Made b, std::string name = {}) const {
    std::vector<Made> operands;
    operands.push_back(std::move(a));
    operands.push_back(std::move(b));
    return make(kind, line, std::move(operands), std::move(name));
  }
  Made constant(int line, Value value) const {
    Made made = make(ExpressionKind::kConstant, line);
    made->value = std::move(value);
    return made;
  }

  Made parse_expression() {
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

  Made parse_or() {
    Made left = parse_and();
    while (at_word("or")) {
      const int line = next().line;
      left = binary(ExpressionKind::kOr, line, std::move(left), parse_and());
    }
    return left;
  }

  Made parse_and() {
    Made left = parse_not();
    while (at_word("and")) {
      const int line = next().line;
      left = binary(ExpressionKind::kAnd, line, std::move(left), parse_not());
    }
    return left;
  }

  Made parse_not() {
    if (!at_word("not")) return parse_compare();
    const Deeper deeper(*this);
    const int line = next().line;
    return unary(ExpressionKind::kNot, line, parse_not());
  }

  Made parse_compare() {
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

  Made parse_sum() {
    Made left = parse_concat();
    while (at_operator("+") || at_operator("-")) {
      const Token& sign = next();
      left = binary(ExpressionKind::kArithmetic, sign.line, std::move(left), parse_concat(), sign.text);
    }
    return left;
  }

  Made parse_concat() {
    const int line = current().line;
    std::vector<Made> parts;
    parts.push_back(parse_product());
    while (skip_operator("~")) parts.push_back(parse_product());
    return parts.size() == 1 ? std::move(parts[0]) : make(ExpressionKind::kConcat, line, std::move(parts));
  }

  Made parse_product() {
    Made left = parse_power();
    while (at_operator("*") || at_operator("/") || at_operator("//") || at_operator("%")) {
      const Token& sign = next();
      left = binary(ExpressionKind::kArithmetic, sign.line, std::move(left), parse_power(), sign.text);
    }
    return left;
  }

  Made parse_power() {
    Made left = parse_unary(true);
    while (at_operator("**")) {
      const int line = next().line;
      left = binary(ExpressionKind::kArithmetic, line, std::move(left), parse_unary(true), "**");
    }
    return left;
  }

  Made parse_unary(bool with_filter) {
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

  Made parse_primary() {
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

  std::vector<Made> parse_separated(std::string_view end, bool pairs) {
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

  bool at_tuple_end() const {
    return current().kind == TokenKind::kOutputEnd || current().kind == TokenKind::kBlockEnd ||
           at_operator(")");
  }

  // One expression, or several with commas between them.
  Made parse_tuple(bool in_brackets) {
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

  Made parse_postfix(Made made) {
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

  Made parse_subscript(Made made, int line) {
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
  Made parse_call(ExpressionKind kind, Made subject, int line, std::string name) {
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

  std::string dotted_name() {
    std::string name = expect_name();
    while (skip_operator(".")) name += "." + expect_name();
    return name;
  }

  Made parse_filters(Made made) {
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

  bool at_test_argument() const {
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

  Made parse_test(Made made) {
    const int line = next().line;
    const bool negated = skip_word("not");
    std::string name = dotted_name();
    if (!at_operator("(") && at_test_argument()) {
      if (at_word("is")) refuse("chains two tests with 'is'");
      made = binary(ExpressionKind::kTest, line, std::move(made), parse_postfix(parse_primary()),
                    std::move(name));
    } else {
      made = parse_call(ExpressionKind::kTest, std::move(made), line, std::move(name));
    }
    return negated ? unary(ExpressionKind::kNot, line, std::move(made)) : std::move(made);
  }

  // --- statements

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
      --at_;
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

  std::vector<Token> tokens_;
  const std::string& file_;
  std::size_t at_ = 0;
  int nesting_ = 0, loops_ = 0, scopes_ = 0;
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
  return Parser(tokens_of(source, file), file).run();
}

}  // namespace llmq::jinja

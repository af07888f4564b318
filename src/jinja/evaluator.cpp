#include "jinja/evaluator.h"

#include <algorithm>

#include "jinja/functions.h"
#include "jinja/variables.h"

namespace llmq::jinja {
namespace {

enum class Flow { kOn, kBreak, kContinue };

class Evaluator {
 public:
  Evaluator(const Dict& context, const std::tm& now, Meter& meter, Escape escape)
      : now_(now), meter_(meter), escape_(escape), variables_(context, meter) {}

  std::string run(const Body& body) {
    variables_.enter();
    execute(body);
    return std::move(out_);
  }

 private:
  struct Deeper {
    explicit Deeper(Meter& meter) : meter_(meter) { meter_.enter(); }
    ~Deeper() { meter_.leave(); }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    Meter& meter_;
  };

  void assign_all(const Statement& statement, const Value& value) {
    if (!statement.unpacks) return variables_.assign_target(statement.names[0], value);
    const Items parts = iterated(meter_, value);
    if (parts.size() != statement.names.size())
      meter_.refuse("cannot unpack " + std::to_string(parts.size()) + " values into " +
                    std::to_string(statement.names.size()) + " names");
    for (std::size_t i = 0; i < parts.size(); ++i) variables_.assign_target(statement.names[i], parts[i]);
  }

  // --- statements

  Flow execute(const Body& body) {
    for (const Statement& statement : body)
      if (const Flow flow = execute(statement); flow != Flow::kOn) return flow;
    return Flow::kOn;
  }

  Flow execute(const Statement& statement) {
    const Deeper deeper(meter_);
    meter_.spend(1);
    meter_.at_line(statement.line);
    switch (statement.kind) {
      case StatementKind::kText:
        write(statement.text);
        break;
      case StatementKind::kOutput:
        print(evaluate(*statement.value));
        break;
      case StatementKind::kIf:
        return execute_if(statement);
      case StatementKind::kFor:
        execute_for(statement);
        break;
      case StatementKind::kSet:
        assign_all(statement, evaluate(*statement.value));
        break;
      case StatementKind::kSetBlock:
        variables_.assign_target(statement.names[0], filtered(statement));
        break;
      case StatementKind::kFilter:
        print(filtered(statement));
        break;
      case StatementKind::kMacro:
        variables_.assign(
            statement.text,
            {std::make_shared<const Function>(Function{statement.text, std::nullopt, &statement})});
        break;
      case StatementKind::kScope:
        variables_.enter();
        execute(statement.bodies[0]);
        variables_.leave();
        break;
      case StatementKind::kBreak:
        return Flow::kBreak;
      case StatementKind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kOn;
  }

  void print(const Value& value) {
    const std::string text = str(meter_, value);
    write(escape_ != nullptr && !value.as<Markup>() ? escape_(text) : text);
  }

  void write(const std::string& text) {
    meter_.produce(text.size());
    out_ += text;
  }

  // What a body prints; it is escaped already where anything is.
  Value captured(const Body& body) {
    std::string outer = std::exchange(out_, {});
    variables_.enter();
    execute(body);
    variables_.leave();
    return marked(make_text(meter_, std::exchange(out_, std::move(outer))));
  }

  Value marked(const Value& value) const {
    const Text* text = value.as<Text>();
    return escape_ != nullptr && text != nullptr ? Value{Markup{*text}} : value;
  }

  Value filtered(const Statement& statement) {
    Value outer = std::exchange(block_text_, captured(statement.bodies[0]));
    Value made = evaluate(*statement.value);
    block_text_ = std::move(outer);
    return made;
  }

  Flow execute_if(const Statement& statement) {
    for (std::size_t i = 0; i < statement.bodies.size(); ++i)
      if (i == statement.conditions.size() || truth(evaluate(*statement.conditions[i])))
        return execute(statement.bodies[i]);
    return Flow::kOn;
  }

  void execute_for(const Statement& statement) {
    Items items = iterated(meter_, evaluate(*statement.value));
    if (!statement.conditions.empty()) items = chosen(statement, items);
    if (items.empty()) {
      if (statement.bodies.size() < 2) return;
      variables_.enter();
      execute(statement.bodies[1]);
      variables_.leave();
      return;
    }
    const Value all = make_list(meter_, std::move(items));
    const auto list = *all.as<std::shared_ptr<const List>>();
    for (std::size_t i = 0; i < list->items.size(); ++i) {
      meter_.spend(1);
      variables_.enter();
      variables_.assign("loop", {std::make_shared<const Loop>(Loop{list, static_cast<std::int64_t>(i), 0})});
      assign_all(statement, list->items[i]);
      const Flow flow = execute(statement.bodies[0]);
      variables_.leave();
      if (flow == Flow::kBreak) break;
    }
  }

  Items chosen(const Statement& statement, const Items& items) {
    Items kept;
    for (const Value& one : items) {
      variables_.enter();
      assign_all(statement, one);
      if (truth(evaluate(*statement.conditions[0]))) kept.push_back(one);
      variables_.leave();
    }
    return kept;
  }

  // --- expressions

  Value evaluate(const Expression& e) {
    const Deeper deeper(meter_);
    meter_.spend(1);
    meter_.at_line(e.line);
    switch (e.kind) {
      case ExpressionKind::kConstant:
        return e.value;
      case ExpressionKind::kName:
        return e.name == kBlockText ? block_text_ : variables_.lookup(e.name);
      case ExpressionKind::kList:
      case ExpressionKind::kTuple:
        return make_list(meter_, each(e), e.kind == ExpressionKind::kTuple);
      case ExpressionKind::kDict:
        return dict(e);
      case ExpressionKind::kAttribute:
        return attribute(meter_, operand(e, 0), e.name);
      case ExpressionKind::kItem:
        return item(meter_, operand(e, 0), operand(e, 1));
      case ExpressionKind::kSlice:
        return sliced(e);
      case ExpressionKind::kCall:
        return call(e);
      case ExpressionKind::kFilter:
        return filter(e);
      case ExpressionKind::kTest:
        return test(e);
      case ExpressionKind::kNot:
        return {!truth(operand(e, 0))};
      case ExpressionKind::kNegate:
        return negative(meter_, operand(e, 0));
      case ExpressionKind::kPlus:
        return plus(operand(e, 0));
      case ExpressionKind::kArithmetic:
        return binary(e);
      case ExpressionKind::kConcat:
        return concat(e);
      case ExpressionKind::kAnd:
      case ExpressionKind::kOr:
        return either(e);
      case ExpressionKind::kCompare:
        return compare(e);
      case ExpressionKind::kConditional:
        return conditional(e);
    }
    return {};
  }

  Value operand(const Expression& e, std::size_t i) { return evaluate(*e.operands[i]); }

  Items each(const Expression& e) {
    Items items;
    for (const ExpressionPointer& one : e.operands) items.push_back(evaluate(*one));
    return items;
  }

  Value dict(const Expression& e) {
    Members members;
    for (std::size_t i = 0; i < e.operands.size(); i += 2) {
      Value key = operand(e, i);
      members.emplace_back(std::move(key), operand(e, i + 1));
    }
    return make_dict(meter_, std::move(members));
  }

  Value sliced(const Expression& e) {
    const Value base = operand(e, 0);
    Value bounds[3];
    for (std::size_t i = 0; i < 3; ++i) bounds[i] = e.operands[i + 1] ? operand(e, i + 1) : Value{None{}};
    return slice(meter_, base, bounds[0], bounds[1], bounds[2]);
  }

  Value test(const Expression& e) {
    const Value subject = operand(e, 0);
    const Arguments given = arguments(e);
    meter_.at_line(e.line);
    return {apply_test(meter_, e.name, subject, given)};
  }

  Value filter(const Expression& e) {
    const Value subject = operand(e, 0);
    const Arguments given = arguments(e);
    meter_.at_line(e.line);
    Value made = apply_filter(meter_, e.name, subject, given);
    return e.name == "safe" ? marked(made) : made;
  }

  Arguments arguments(const Expression& e) {
    Arguments made;
    const std::size_t named = e.operands.size() - e.names.size();
    for (std::size_t i = 1; i < e.operands.size(); ++i) {
      if (i < named)
        made.positional.push_back(operand(e, i));
      else
        made.named.emplace_back(e.names[i - named], operand(e, i));
    }
    return made;
  }

  Value call(const Expression& e) {
    const Value callee = operand(e, 0);
    defined(meter_, callee);
    const auto* function = callee.as<std::shared_ptr<const Function>>();
    if (!function) meter_.refuse(std::string("'") + type_name(callee) + "' object is not callable");
    const Arguments given = arguments(e);
    meter_.at_line(e.line);
    const Function& called = **function;
    if (called.self) return call_method(meter_, *called.self, called.name, given);
    return called.macro ? call_macro(*called.macro, given) : call_global(meter_, called.name, given, now_);
  }

  Value call_macro(const Statement& macro, const Arguments& given) {
    if (given.positional.size() > macro.names.size())
      meter_.refuse("macro '" + macro.text + "' takes not more than " + std::to_string(macro.names.size()) +
                    " argument(s)");
    for (const auto& argument : given.named)
      if (std::find(macro.names.begin(), macro.names.end(), argument.first) == macro.names.end())
        meter_.refuse("macro '" + macro.text + "' takes no keyword argument '" + argument.first + "'");
    const std::size_t outer = variables_.enter_macro();
    variables_.enter();
    for (std::size_t i = 0; i < macro.names.size(); ++i) {
      const Value* found = given.find(i, macro.names[i]);
      Value value = found ? *found
                    : macro.conditions[i]
                        ? evaluate(*macro.conditions[i])
                        : make_undefined("parameter '" + macro.names[i] + "' was not provided");
      variables_.assign(macro.names[i], std::move(value));
    }
    Value text = captured(macro.bodies[0]);
    variables_.leave();
    variables_.leave_macro(outer);
    return text;
  }

  Value plus(const Value& value) {
    if (!defined(meter_, value).number())
      meter_.refuse(std::string("bad operand type for unary +: '") + type_name(value) + "'");
    return value.as<bool>() ? Value{*value.integer()} : value;
  }

  // jinja2 marks a text that went through `safe`, and adding to such a text escapes HTML: not done here, so
  // not pretended.
  void refuse_safe(const Expression& e) {
    if (e.kind == ExpressionKind::kFilter && e.name == "safe")
      meter_.unsupported("the chat template adds to a text that is marked safe");
  }

  Value binary(const Expression& e) {
    if (e.name == "+") {
      refuse_safe(*e.operands[0]);
      refuse_safe(*e.operands[1]);
    }
    const Value left = operand(e, 0);
    const Value right = operand(e, 1);
    meter_.at_line(e.line);
    return arithmetic(meter_, e.name, left, right);
  }

  Value concat(const Expression& e) {
    std::string out;
    for (const ExpressionPointer& one : e.operands) out += str(meter_, evaluate(*one));
    return make_text(meter_, std::move(out));
  }

  Value either(const Expression& e) {
    Value left = operand(e, 0);
    return truth(left) == (e.kind == ExpressionKind::kOr) ? left : operand(e, 1);
  }

  Value compare(const Expression& e) {
    Value left = operand(e, 0);
    for (std::size_t i = 0; i < e.names.size(); ++i) {
      Value right = operand(e, i + 1);
      meter_.at_line(e.line);
      if (!holds(e.names[i], left, right)) return {false};
      left = std::move(right);
    }
    return {true};
  }

  bool holds(const std::string& sign, const Value& a, const Value& b) {
    if (sign == "in" || sign == "not in") return contains(meter_, a, b) == (sign == "in");
    if (sign == "==" || sign == "!=") return equal(meter_, a, b) == (sign == "==");
    if (sign[0] == '<') return less(meter_, a, b) || (sign == "<=" && equal(meter_, a, b));
    return less(meter_, b, a) || (sign == ">=" && equal(meter_, a, b));
  }

  Value conditional(const Expression& e) {
    if (truth(operand(e, 0))) return operand(e, 1);
    if (e.operands[2]) return operand(e, 2);
    return make_undefined("the inline if-expression on line " + std::to_string(e.line) +
                          " evaluated to false and no else section was defined.");
  }

  const std::tm& now_;
  Meter& meter_;
  const Escape escape_;
  Variables variables_;
  std::string out_;
  Value block_text_;
};

}  // namespace

std::string evaluate(const Body& body, const Value& context, const std::tm& now, Meter& meter,
                     Escape escape) {
  return Evaluator(*context.dict(), now, meter, escape).run(body);
}

}  // namespace llmq::jinja

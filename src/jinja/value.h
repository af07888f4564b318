// What a template computes with: Python's None, bool, int, float, str, list, tuple and dict, and Jinja's
// undefined, namespace, loop and callables.
//
// Values are shared and never changed once made, so a copy is a pointer; a namespace is the one thing that
// changes, and it may not lie in a list, a dict or another namespace, so no cycle can arise. Every list knows
// how deep it nests, and a limit on that keeps all recursion over values short. Integers are 64 bits wide:
// what does not fit is refused, not rounded.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"
#include "jinja/meter.h"

namespace llmq::jinja {

struct List;
struct Dict;
struct Loop;
struct Namespace;
struct Function;
struct Statement;

struct None {};
struct Undefined {
  std::shared_ptr<const std::string> why;  // "'x' is undefined"
};

using Text = std::shared_ptr<const std::string>;
// A text that an evaluation which escapes prints as it is; all else treats it as a text.
struct Markup {
  Text text;
};

struct Value {
  std::variant<Undefined, None, bool, std::int64_t, double, Text, std::shared_ptr<const List>,
               std::shared_ptr<const Dict>, std::shared_ptr<const Loop>, std::shared_ptr<Namespace>,
               std::shared_ptr<const Function>, Markup>
      held;

  template <typename T>
  const T* as() const {
    return std::get_if<T>(&held);
  }
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<None>() != nullptr; }
  const std::string* text() const {
    return as<Text>() ? as<Text>()->get() : as<Markup>() ? as<Markup>()->text.get() : nullptr;
  }
  const List* list() const {
    return as<std::shared_ptr<const List>>() ? as<std::shared_ptr<const List>>()->get() : nullptr;
  }
  const Dict* dict() const {
    return as<std::shared_ptr<const Dict>>() ? as<std::shared_ptr<const Dict>>()->get() : nullptr;
  }
  std::optional<std::int64_t> integer() const;  // of a bool too
  std::optional<double> number() const;         // of a bool or an integer too
};

using Items = std::vector<Value>;
using Members = std::vector<std::pair<Value, Value>>;

struct List {
  Items items;
  bool tuple = false;
  int depth = 1;
};
struct Dict {
  Members members;
  int depth = 1;
};
struct Loop {
  std::shared_ptr<const List> items;
  std::int64_t index = 0, nesting = 0;
};
struct Namespace {
  std::vector<std::pair<std::string, Value>> members;
};
// A global function, a macro, or a method together with what it was taken from.
struct Function {
  std::string name;
  std::optional<Value> self = {};
  const Statement* macro = nullptr;
};

Value make_text(Meter& meter, std::string text);
Value make_list(Meter& meter, Items items, bool tuple = false);
Value make_dict(Meter& meter, Members members);  // keys as they come: a later one replaces an earlier one
Value make_undefined(std::string why);
Value from_json(Meter& meter, const Json& json);

const char* type_name(const Value& value);  // Python's
bool truth(const Value& value);
bool equal(Meter& meter, const Value& a, const Value& b);
// a < b of numbers, of texts, of lists; anything else is refused.
bool less(Meter& meter, const Value& a, const Value& b);
// a in b
bool contains(Meter& meter, const Value& item, const Value& container);
const Value* find_key(Meter& meter, const Dict& dict, const Value& key);
// What a loop goes over: items, keys, characters; nothing for undefined.
Items iterated(Meter& meter, const Value& value);

std::string str(Meter& meter, const Value& value);   // str(), as {{ }} prints
std::string repr(Meter& meter, const Value& value);  // repr()

struct JsonStyle {
  bool ascii = false, sort_keys = false;
  std::optional<std::string> indent;  // of one level
  std::string between_items = ", ", after_key = ": ";
};
std::string json_text(Meter& meter, const Value& value, const JsonStyle& style);  // json.dumps()

}  // namespace llmq::jinja

// Tests (`x is ...`), by jinja2's tests.py.
#include <cmath>

#include "base/utf8.h"
#include "jinja/functions.h"
#include "jinja/text.h"

namespace llmq::jinja {
namespace {

// str.isupper, str.islower: some character has a case, and none the other one.
bool all_in_case(const std::string& text, bool upper) {
  bool any = false;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = read_utf8(text, at);
    const std::string_view one = std::string_view(text).substr(at, c.bytes);
    at += c.bytes;
    const bool has_lower = in_case(one, Case::kUpper) != one, has_upper = in_case(one, Case::kLower) != one;
    if (upper ? has_lower : has_upper) return false;
    any = any || has_lower || has_upper;
  }
  return any;
}

bool compares(Meter& meter, const std::string& name, const Value& a, const Value& b) {
  if (name == "eq" || name == "==" || name == "equalto") return equal(meter, a, b);
  if (name == "ne" || name == "!=") return !equal(meter, a, b);
  if (name == "lt" || name == "<" || name == "lessthan") return less(meter, a, b);
  if (name == "gt" || name == ">" || name == "greaterthan") return less(meter, b, a);
  if (name == "le" || name == "<=") return less(meter, a, b) || equal(meter, a, b);
  if (name == "ge" || name == ">=") return less(meter, b, a) || equal(meter, a, b);
  if (name == "in") return contains(meter, a, b);
  if (name == "sameas") return a.held.index() == b.held.index() && equal(meter, a, b);
  if (name == "divisibleby") return equal(meter, arithmetic(meter, "%", a, b), {std::int64_t{0}});
  meter.unsupported("the chat template uses the test '" + name.substr(0, 40) + "'");
}

bool even(Meter& meter, const Value& value) {
  return equal(meter, arithmetic(meter, "%", value, {std::int64_t{2}}), {std::int64_t{0}});
}

}  // namespace

bool apply_test(Meter& meter, const std::string& name, const Value& subject, const Arguments& arguments) {
  meter.spend(1);
  if (!arguments.positional.empty()) return compares(meter, name, subject, arguments.positional[0]);
  const bool boolean = subject.as<bool>() != nullptr;
  if (name == "defined") return !subject.is_undefined();
  if (name == "undefined") return subject.is_undefined();
  if (name == "none") return subject.is_none();
  if (name == "string") return subject.text() != nullptr;
  if (name == "mapping") return subject.dict() != nullptr;
  if (name == "boolean") return boolean;
  if (name == "true") return boolean && truth(subject);
  if (name == "false") return boolean && !truth(subject);
  if (name == "number") return subject.number().has_value();
  if (name == "integer") return subject.as<std::int64_t>() != nullptr;
  if (name == "float") return subject.as<double>() != nullptr;
  if (name == "sequence" || name == "iterable") {
    if (subject.is_undefined()) return true;  // it can be gone through, and has a length of 0
    return subject.text() || subject.list() || subject.dict() ||
           (name == "iterable" && subject.as<std::shared_ptr<const Loop>>());
  }
  if (name == "callable") return subject.as<std::shared_ptr<const Function>>() != nullptr;
  if (name == "even") return even(meter, subject);
  if (name == "odd") return !even(meter, subject);
  if (name == "upper" || name == "lower") return all_in_case(str(meter, subject), name == "upper");
  meter.unsupported("the chat template uses the test '" + name.substr(0, 40) + "'");
}

}  // namespace llmq::jinja

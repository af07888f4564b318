// Arguments, arithmetic, attributes, subscripts.
#include <algorithm>
#include <cmath>

#include "jinja/functions.h"
#include "jinja/text.h"

namespace llmq::jinja {
namespace {

enum class Sign { kAdd, kSubtract, kMultiply };

Value exactly(Meter& meter, Sign sign, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  const bool overflow = sign == Sign::kAdd        ? __builtin_add_overflow(a, b, &result)
                        : sign == Sign::kSubtract ? __builtin_sub_overflow(a, b, &result)
                                                  : __builtin_mul_overflow(a, b, &result);
  if (overflow) meter.refuse("the chat template computes an integer beyond 64 bits");
  return {result};
}

[[noreturn]] void refuse_operands(Meter& meter, std::string_view sign, const Value& a, const Value& b) {
  defined(meter, a);
  defined(meter, b);
  meter.refuse("unsupported operand type(s) for " + std::string(sign) + ": '" + type_name(a) + "' and '" +
               type_name(b) + "'");
}

Value integer_power(Meter& meter, std::int64_t base, std::int64_t exponent) {
  if (base == 0 || base == 1) return {exponent == 0 ? std::int64_t{1} : base};
  if (base == -1) return {exponent % 2 != 0 ? std::int64_t{-1} : std::int64_t{1}};
  Value result{std::int64_t{1}};  // at most 63 rounds before it is too large
  for (std::int64_t i = 0; i < exponent; ++i)
    result = exactly(meter, Sign::kMultiply, *result.integer(), base);
  return result;
}

// Both are integers; division rounds down.
Value on_integers(Meter& meter, std::string_view sign, std::int64_t a, std::int64_t b) {
  if (sign == "+") return exactly(meter, Sign::kAdd, a, b);
  if (sign == "-") return exactly(meter, Sign::kSubtract, a, b);
  if (sign == "*") return exactly(meter, Sign::kMultiply, a, b);
  if (sign == "**")
    return b >= 0 ? integer_power(meter, a, b)
                  : Value{std::pow(static_cast<double>(a), static_cast<double>(b))};
  if (b == 0) meter.refuse("division by zero");
  if (sign == "/") return {static_cast<double>(a) / static_cast<double>(b)};
  if (b == -1) return sign == "%" ? Value{std::int64_t{0}} : exactly(meter, Sign::kSubtract, 0, a);
  const bool down = a % b != 0 && (a % b < 0) != (b < 0);
  if (sign == "//") return {a / b - (down ? 1 : 0)};
  return {a % b + (down ? b : 0)};
}

Value on_floats(Meter& meter, std::string_view sign, double a, double b) {
  if (sign == "+") return {a + b};
  if (sign == "-") return {a - b};
  if (sign == "*") return {a * b};
  if (sign == "**") return {std::pow(a, b)};
  if (b == 0) meter.refuse("float division by zero");
  if (sign == "/") return {a / b};
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (sign == "%") return {rest != 0 ? rest : std::copysign(0.0, b)};
  return {std::round((a - rest) / b)};
}

Value repeated(Meter& meter, const Value& what, std::int64_t times) {
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(times, 0));
  if (what.text()) {
    const std::string& text = *what.text();
    meter.produce(text.empty() ? 0 : count, std::max<std::size_t>(text.size(), 1));
    std::string out;
    for (std::size_t i = 0; !text.empty() && i < count; ++i) out += text;
    return make_text(meter, std::move(out));
  }
  const Items& items = what.list()->items;
  meter.produce(items.empty() ? 0 : count, std::max<std::size_t>(items.size(), 1) * sizeof(Value));
  Items out;
  for (std::size_t i = 0; !items.empty() && i < count; ++i) {
    meter.spend(static_cast<std::int64_t>(items.size()));
    out.insert(out.end(), items.begin(), items.end());
  }
  return make_list(meter, std::move(out), what.list()->tuple);
}

// text % arguments: %s, %d and %%.
Value formatted(Meter& meter, const std::string& format, const Value& arguments) {
  const Items values =
      arguments.list() && arguments.list()->tuple ? arguments.list()->items : Items{arguments};
  std::string out;
  std::size_t used = 0;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    const char kind = ++i < format.size() ? format[i] : '\0';
    if (kind == '%') {
      out += '%';
      continue;
    }
    if (kind != 's' && kind != 'd') meter.unsupported("the chat template formats with other than %s and %d");
    if (used == values.size()) meter.refuse("not enough arguments for format string");
    if (kind == 'd' && !values[used].number())
      meter.refuse(std::string("%d format: a real number is required, not ") + type_name(values[used]));
    if (kind == 'd' && !values[used].integer())
      meter.unsupported("the chat template formats a float with %d");
    out += kind == 'd' ? std::to_string(*values[used].integer()) : str(meter, values[used]);
    ++used;
  }
  if (used < values.size()) meter.refuse("not all arguments converted during string formatting");
  return make_text(meter, std::move(out));
}

Value missing(const Value& base, const std::string& name) {
  return make_undefined("'" + std::string(type_name(base)) + " object' has no attribute '" + name + "'");
}

Value loop_attribute(Meter& meter, const Value& base, const std::shared_ptr<const Loop>& loop,
                     const std::string& name) {
  const auto size = static_cast<std::int64_t>(loop->items->items.size());
  const auto at = [&](std::int64_t i, const char* why) {
    return i >= 0 && i < size ? loop->items->items[static_cast<std::size_t>(i)] : make_undefined(why);
  };
  if (name == "index") return {loop->index + 1};
  if (name == "index0") return {loop->index};
  if (name == "revindex") return {size - loop->index};
  if (name == "revindex0") return {size - loop->index - 1};
  if (name == "first") return {loop->index == 0};
  if (name == "last") return {loop->index + 1 == size};
  if (name == "length") return {size};
  if (name == "depth") return {loop->nesting + 1};
  if (name == "depth0") return {loop->nesting};
  if (name == "previtem") return at(loop->index - 1, "there is no previous item");
  if (name == "nextitem") return at(loop->index + 1, "there is no next item");
  if (name == "cycle") return {std::make_shared<const Function>(Function{name, base})};
  meter.unsupported("the chat template uses loop." + name.substr(0, 40));
}

// Where Python's slice starts or stops.
std::int64_t clamped(std::int64_t index, std::int64_t size, std::int64_t low, std::int64_t high) {
  if (index < 0) index = index < -size ? low : index + size;
  return std::clamp(index, low, high);
}

}  // namespace

const Value* Arguments::find(std::size_t position, std::string_view name) const {
  if (position < positional.size()) return &positional[position];
  for (const auto& argument : named)
    if (argument.first == name) return &argument.second;
  return nullptr;
}

const Value& Arguments::get(Meter& meter, std::size_t position, std::string_view name,
                            std::string_view of) const {
  const Value* found = find(position, name);
  if (!found) meter.refuse(std::string(of) + " needs the argument '" + std::string(name) + "'");
  return *found;
}

std::int64_t Arguments::integer(Meter& meter, std::size_t position, std::string_view name,
                                std::int64_t otherwise) const {
  const Value* found = find(position, name);
  if (!found) return otherwise;
  if (!found->integer())
    meter.refuse("'" + std::string(type_name(*found)) + "' object cannot be interpreted as an integer");
  return *found->integer();
}

bool Arguments::flag(std::size_t position, std::string_view name, bool otherwise) const {
  const Value* found = find(position, name);
  return found ? truth(*found) : otherwise;
}

void Arguments::at_most(Meter& meter, std::size_t positions, std::initializer_list<std::string_view> names,
                        std::string_view of) const {
  if (positional.size() > positions)
    meter.refuse(std::string(of) + " takes at most " + std::to_string(positions) + " arguments");
  for (const auto& argument : named)
    if (std::find(names.begin(), names.end(), argument.first) == names.end())
      meter.refuse(std::string(of) + " has no argument '" + argument.first.substr(0, 40) + "'");
}

const Value& defined(Meter& meter, const Value& value) {
  if (value.is_undefined()) meter.refuse(*value.as<Undefined>()->why);
  return value;
}

const std::string& text_of(Meter& meter, const Value& value, std::string_view use) {
  if (!defined(meter, value).text())
    meter.refuse(std::string(use) + " needs a text, found '" + type_name(value) + "'");
  return *value.text();
}

Value arithmetic(Meter& meter, std::string_view sign, const Value& a, const Value& b) {
  if (a.integer() && b.integer()) return on_integers(meter, sign, *a.integer(), *b.integer());
  if (a.number() && b.number()) return on_floats(meter, sign, *a.number(), *b.number());
  if (sign == "+" && a.text() && b.text()) {
    meter.produce(a.text()->size() + b.text()->size());
    return make_text(meter, *a.text() + *b.text());
  }
  if (sign == "+" && a.list() && b.list() && a.list()->tuple == b.list()->tuple) {
    meter.produce(a.list()->items.size() + b.list()->items.size(), sizeof(Value));
    Items items = a.list()->items;
    items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
    return make_list(meter, std::move(items), a.list()->tuple);
  }
  if (sign == "*" && (a.text() || a.list()) && b.integer()) return repeated(meter, a, *b.integer());
  if (sign == "*" && (b.text() || b.list()) && a.integer()) return repeated(meter, b, *a.integer());
  if (sign == "%" && a.text()) return formatted(meter, *a.text(), b);
  refuse_operands(meter, sign, a, b);
}

Value negative(Meter& meter, const Value& value) {
  if (value.integer()) return exactly(meter, Sign::kSubtract, 0, *value.integer());
  if (value.number()) return {-*value.number()};
  defined(meter, value);
  meter.refuse(std::string("bad operand type for unary -: '") + type_name(value) + "'");
}

Value attribute(Meter& meter, const Value& base, const std::string& name) {
  defined(meter, base);
  if (const auto* loop = base.as<std::shared_ptr<const Loop>>())
    return loop_attribute(meter, base, *loop, name);
  if (const auto* space = base.as<std::shared_ptr<Namespace>>()) {
    for (const auto& member : (*space)->members)
      if (member.first == name) return member.second;
    return missing(base, name);
  }
  if (name.starts_with('_')) return missing(base, name);
  if (has_method(base, name)) return {std::make_shared<const Function>(Function{name, base})};
  if (base.dict())
    for (const auto& member : base.dict()->members)
      if (member.first.text() && *member.first.text() == name) return member.second;
  return missing(base, name);
}

Value item(Meter& meter, const Value& base, const Value& key) {
  defined(meter, base);
  if (base.list() && key.integer()) {
    const Items& items = base.list()->items;
    const auto size = static_cast<std::int64_t>(items.size());
    const std::int64_t index = *key.integer() < 0 ? *key.integer() + size : *key.integer();
    if (index >= 0 && index < size) return items[static_cast<std::size_t>(index)];
    return missing(base, std::to_string(*key.integer()));
  }
  if (base.text() && key.integer()) {
    meter.spend_text(base.text()->size());
    const std::string& text = *base.text();
    const auto size = static_cast<std::int64_t>(characters(text));
    std::int64_t index = *key.integer() < 0 ? *key.integer() + size : *key.integer();
    if (index < 0 || index >= size) return missing(base, std::to_string(*key.integer()));
    for (std::size_t at = 0;; --index) {
      std::size_t end = at + 1;
      while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) ++end;
      if (index == 0) return make_text(meter, text.substr(at, end - at));
      at = end;
    }
  }
  if (base.dict())
    if (const Value* found = find_key(meter, *base.dict(), key)) return *found;
  return key.text() ? attribute(meter, base, *key.text()) : missing(base, repr(meter, key));
}

Value slice(Meter& meter, const Value& base, const Value& start, const Value& stop, const Value& step) {
  defined(meter, base);
  if (!base.list() && !base.text()) return missing(base, "a slice");
  for (const Value* bound : {&start, &stop, &step})
    if (!bound->is_none() && !bound->integer()) meter.refuse("slice indices must be integers or None");
  const std::int64_t by = step.is_none() ? 1 : *step.integer();
  if (by == 0) meter.refuse("slice step cannot be zero");
  const Items items = iterated(meter, base);
  const auto size = static_cast<std::int64_t>(items.size());
  const std::int64_t low = by > 0 ? 0 : -1, high = by > 0 ? size : size - 1;
  const std::int64_t first =
      start.is_none() ? (by > 0 ? low : high) : clamped(*start.integer(), size, low, high);
  const std::int64_t end = stop.is_none() ? (by > 0 ? high : low) : clamped(*stop.integer(), size, low, high);
  const std::int64_t stride = std::clamp(by, -size - 1, size + 1);  // a longer one leaves the list as well
  Items taken;
  std::string text;
  for (std::int64_t i = first; by > 0 ? i < end : i > end; i += stride) {
    const Value& one = items[static_cast<std::size_t>(i)];
    if (base.text())
      text += *one.text();
    else
      taken.push_back(one);
  }
  return base.text() ? make_text(meter, std::move(text))
                     : make_list(meter, std::move(taken), base.list()->tuple);
}

}  // namespace llmq::jinja

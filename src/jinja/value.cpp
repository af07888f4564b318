#include "jinja/value.h"

#include <algorithm>
#include <cmath>
#include <compare>

#include "jinja/text.h"

namespace llmq::jinja {
namespace {

int depth_of(Meter& meter, const Value& value) {
  if (value.list()) return value.list()->depth;
  if (value.dict()) return value.dict()->depth;
  if (const auto* loop = value.as<std::shared_ptr<const Loop>>()) return (*loop)->items->depth;
  if (const auto* function = value.as<std::shared_ptr<const Function>>())
    return (*function)->self ? 1 + depth_of(meter, *(*function)->self) : 0;
  if (value.as<std::shared_ptr<Namespace>>())
    meter.unsupported("the chat template stores a namespace inside another value");
  return 0;
}

int checked_depth(Meter& meter, int inside) {
  if (inside >= meter.limits().value_depth)
    meter.refuse("the chat template nests values deeper than " + std::to_string(meter.limits().value_depth));
  return inside + 1;
}

std::strong_ordering ordered(std::int64_t a, std::int64_t b) { return a <=> b; }

std::partial_ordering compare_numbers(const Value& a, const Value& b) {
  if (a.integer() && b.integer()) return ordered(*a.integer(), *b.integer());
  return static_cast<long double>(*a.number()) <=> static_cast<long double>(*b.number());
}

bool has_key(Meter& meter, const Value& key) {
  if (key.list() && !key.list()->tuple) meter.refuse("unhashable type: 'list'");
  if (key.dict()) meter.refuse("unhashable type: 'dict'");
  return true;
}

void write_json(Meter& meter, std::string& out, const Value& value, const JsonStyle& style,
                const std::string& line);

template <typename Range, typename Write>
void write_nested(Meter& meter, std::string& out, const Range& range, const char* brackets,
                  const JsonStyle& style, const std::string& line, const Write& write) {
  out += brackets[0];
  const std::string inner = style.indent ? line + *style.indent : line;
  bool first = true;
  for (const auto& item : range) {
    if (!first) out += style.between_items;
    first = false;
    if (style.indent) out += inner;
    meter.produce(inner.size() + 8);
    write(item, inner);
  }
  if (!first && style.indent) out += line;
  out += brackets[1];
}

std::string json_key(Meter& meter, const Value& key) {
  if (key.text()) return *key.text();
  if (key.is_none()) return "null";
  if (const bool* b = key.as<bool>()) return *b ? "true" : "false";
  if (key.number()) return str(meter, key);
  meter.refuse(std::string("keys must be str, int, float, bool or None, not ") + type_name(key));
}

void write_json(Meter& meter, std::string& out, const Value& value, const JsonStyle& style,
                const std::string& line) {
  meter.spend(1);
  if (value.text()) {
    meter.produce(value.text()->size() + 2);
    out += json_quoted(*value.text(), style.ascii);
  } else if (value.is_none()) {
    out += "null";
  } else if (const bool* b = value.as<bool>()) {
    out += *b ? "true" : "false";
  } else if (const double* real = value.as<double>()) {
    out += std::isnan(*real)   ? "NaN"
           : std::isinf(*real) ? (*real > 0 ? "Infinity" : "-Infinity")
                               : float_text(*real);
  } else if (value.integer()) {
    out += std::to_string(*value.integer());
  } else if (value.list()) {
    write_nested(
        meter, out, value.list()->items, "[]", style, line,
        [&](const Value& item, const std::string& inner) { write_json(meter, out, item, style, inner); });
  } else if (value.dict()) {
    Members members = value.dict()->members;
    meter.produce(members.size(), sizeof(Members::value_type));
    if (style.sort_keys)
      std::stable_sort(members.begin(), members.end(), [&](const auto& x, const auto& y) {
        meter.spend(1);
        return less(meter, x.first, y.first);
      });
    write_nested(meter, out, members, "{}", style, line, [&](const auto& member, const std::string& inner) {
      out += json_quoted(json_key(meter, member.first), style.ascii);
      out += style.after_key;
      write_json(meter, out, member.second, style, inner);
    });
  } else {
    meter.refuse(std::string("Object of type ") + type_name(value) + " is not JSON serializable");
  }
}

}  // namespace

std::optional<std::int64_t> Value::integer() const {
  if (const bool* b = as<bool>()) return *b ? 1 : 0;
  if (const std::int64_t* i = as<std::int64_t>()) return *i;
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (const double* real = as<double>()) return *real;
  if (const auto i = integer()) return static_cast<double>(*i);
  return std::nullopt;
}

Value make_text(Meter& meter, std::string text) {
  meter.produce(text.size() + sizeof(std::string));
  return {std::make_shared<const std::string>(std::move(text))};
}

Value make_list(Meter& meter, Items items, bool tuple) {
  meter.produce(items.size(), sizeof(Value));
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, depth_of(meter, item));
  return {std::make_shared<const List>(List{std::move(items), tuple, checked_depth(meter, depth)})};
}

Value make_dict(Meter& meter, Members members) {
  meter.produce(members.size(), sizeof(Members::value_type));
  int depth = 0;
  Members kept;
  for (auto& member : members) {
    has_key(meter, member.first);
    depth = std::max({depth, depth_of(meter, member.first), depth_of(meter, member.second)});
    const auto same = std::find_if(kept.begin(), kept.end(), [&](const auto& other) {
      meter.spend(1);
      return equal(meter, other.first, member.first);
    });
    if (same != kept.end())
      same->second = std::move(member.second);
    else
      kept.push_back(std::move(member));
  }
  return {std::make_shared<const Dict>(Dict{std::move(kept), checked_depth(meter, depth)})};
}

Value make_undefined(std::string why) {
  return {Undefined{std::make_shared<const std::string>(std::move(why))}};
}

Value from_json(Meter& meter, const Json& json) {
  if (json.is_null()) return {None{}};
  if (json.is_bool()) return {json.as_bool()};
  if (json.is_integer()) return {json.as_integer()};
  if (json.is_number()) return {json.as_double()};
  if (json.is_string()) return make_text(meter, json.as_string());
  if (json.is_array()) {
    Items items;
    for (const Json& item : json.items()) items.push_back(from_json(meter, item));
    return make_list(meter, std::move(items));
  }
  Members members;  // keys of a Json object differ: no need to compare them
  int depth = 0;
  for (const Json::Member& member : json.members()) {
    members.emplace_back(make_text(meter, member.first), from_json(meter, member.second));
    depth = std::max(depth, depth_of(meter, members.back().second));
  }
  meter.produce(members.size(), sizeof(Members::value_type));
  return {std::make_shared<const Dict>(Dict{std::move(members), checked_depth(meter, depth)})};
}

const char* type_name(const Value& value) {
  static constexpr const char* kNames[] = {"Undefined",   "NoneType",  "bool",     "int",
                                           "float",       "str",       "list",     "dict",
                                           "LoopContext", "Namespace", "function", "str"};
  return value.list() && value.list()->tuple ? "tuple" : kNames[value.held.index()];
}

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.number()) return *value.number() != 0;
  if (value.text()) return !value.text()->empty();
  if (value.list()) return !value.list()->items.empty();
  if (value.dict()) return !value.dict()->members.empty();
  return true;
}

bool equal(Meter& meter, const Value& a, const Value& b) {
  meter.spend(1);
  if (a.number() && b.number()) return std::is_eq(compare_numbers(a, b));
  if (a.text() && b.text()) {
    if (a.text()->size() == b.text()->size()) meter.spend_text(a.text()->size());
    return *a.text() == *b.text();
  }
  if (a.held.index() != b.held.index()) return false;
  if (a.list()) {
    const Items &x = a.list()->items, &y = b.list()->items;
    if (a.list()->tuple != b.list()->tuple || x.size() != y.size()) return false;
    for (std::size_t i = 0; i < x.size(); ++i)
      if (!equal(meter, x[i], y[i])) return false;
    return true;
  }
  if (a.dict()) {
    if (a.dict()->members.size() != b.dict()->members.size()) return false;
    for (const auto& member : a.dict()->members) {
      const Value* other = find_key(meter, *b.dict(), member.first);
      if (!other || !equal(meter, member.second, *other)) return false;
    }
    return true;
  }
  if (a.is_none() || a.is_undefined()) return true;
  if (const auto* space = a.as<std::shared_ptr<Namespace>>())
    return *space == *b.as<std::shared_ptr<Namespace>>();
  if (const auto* function = a.as<std::shared_ptr<const Function>>())
    return *function == *b.as<std::shared_ptr<const Function>>();
  return *a.as<std::shared_ptr<const Loop>>() == *b.as<std::shared_ptr<const Loop>>();
}

bool less(Meter& meter, const Value& a, const Value& b) {
  meter.spend(1);
  if (a.number() && b.number()) return std::is_lt(compare_numbers(a, b));
  if (a.text() && b.text()) {
    meter.spend_text(std::min(a.text()->size(), b.text()->size()));
    return *a.text() < *b.text();  // UTF-8 sorts as its code points do
  }
  if (a.list() && b.list() && a.list()->tuple == b.list()->tuple) {
    const Items &x = a.list()->items, &y = b.list()->items;
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (!equal(meter, x[i], y[i])) return less(meter, x[i], y[i]);
    return x.size() < y.size();
  }
  if (a.is_undefined()) meter.refuse(*a.as<Undefined>()->why);
  if (b.is_undefined()) meter.refuse(*b.as<Undefined>()->why);
  meter.refuse(std::string("'<' not supported between instances of '") + type_name(a) + "' and '" +
               type_name(b) + "'");
}

bool contains(Meter& meter, const Value& item, const Value& container) {
  if (container.text()) {
    if (item.is_undefined()) meter.refuse(*item.as<Undefined>()->why);
    if (!item.text())
      meter.refuse(std::string("'in <string>' requires string as left operand, not ") + type_name(item));
    meter.spend_text(container.text()->size());
    return container.text()->find(*item.text()) != std::string::npos;
  }
  if (container.dict()) return has_key(meter, item) && find_key(meter, *container.dict(), item) != nullptr;
  if (container.is_undefined()) return false;
  if (!container.list())
    meter.refuse(std::string("argument of type '") + type_name(container) + "' is not iterable");
  const Items& items = container.list()->items;
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& other) { return equal(meter, item, other); });
}

const Value* find_key(Meter& meter, const Dict& dict, const Value& key) {
  meter.spend(static_cast<std::int64_t>(dict.members.size() / 16));
  for (const auto& member : dict.members) {
    if (key.text() && member.first.text()) {
      if (*key.text() == *member.first.text()) return &member.second;
    } else if (equal(meter, key, member.first)) {
      return &member.second;
    }
  }
  return nullptr;
}

Items iterated(Meter& meter, const Value& value) {
  Items items;
  if (value.is_undefined()) return items;
  if (value.list()) {
    meter.produce(value.list()->items.size(), sizeof(Value));
    return value.list()->items;
  }
  if (value.dict()) {
    meter.produce(value.dict()->members.size(), sizeof(Value));
    for (const auto& member : value.dict()->members) items.push_back(member.first);
  } else if (value.text()) {
    meter.produce(value.text()->size(), sizeof(Value) + sizeof(std::string_view));
    for (const std::string_view character : each_character(*value.text()))
      items.push_back(make_text(meter, std::string(character)));
  } else {
    meter.refuse(std::string("'") + type_name(value) + "' object is not iterable");
  }
  return items;
}

std::string str(Meter& meter, const Value& value) {
  if (value.is_undefined()) return {};
  if (value.text()) {
    meter.produce(value.text()->size());
    return *value.text();
  }
  return repr(meter, value);
}

std::string repr(Meter& meter, const Value& value) {
  meter.produce(16);
  if (value.text()) {
    meter.produce(value.text()->size());
    return quoted(*value.text());
  }
  if (value.is_none()) return "None";
  if (value.is_undefined()) return "Undefined";
  if (const bool* b = value.as<bool>()) return *b ? "True" : "False";
  if (const double* real = value.as<double>()) return float_text(*real);
  if (value.integer()) return std::to_string(*value.integer());
  std::string out;
  if (value.list()) {
    const List& list = *value.list();
    for (const Value& item : list.items) {
      out += out.empty() ? "" : ", ";
      out += repr(meter, item);
    }
    meter.spend_text(out.size());
    if (list.tuple && list.items.size() == 1) out += ",";
    return list.tuple ? "(" + out + ")" : "[" + out + "]";
  }
  if (value.dict()) {
    for (const auto& member : value.dict()->members) {
      out += out.empty() ? "" : ", ";
      out += repr(meter, member.first) + ": " + repr(meter, member.second);
    }
    meter.spend_text(out.size());
    return "{" + out + "}";
  }
  meter.unsupported(std::string("the chat template prints a ") + type_name(value));
}

std::string json_text(Meter& meter, const Value& value, const JsonStyle& style) {
  std::string out;
  write_json(meter, out, value, style, "\n");
  return out;
}

}  // namespace llmq::jinja

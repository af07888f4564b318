// Filters, by jinja2's filters.py.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>

#include "jinja/functions.h"
#include "jinja/text.h"

namespace llmq::jinja {
namespace {

using Filter = Value (*)(Meter&, const Value&, const Arguments&);

// item, item.attribute, item.a.0.b; `fallback` stands for any part that is not there.
Value reach(Meter& meter, const Value& from, const Value& path, const Value* fallback = nullptr) {
  if (path.is_none()) return from;
  if (path.integer()) return item(meter, from, path);
  Value reached = from;
  for (const std::string_view part : split(text_of(meter, path, "attribute"), ".", -1, false)) {
    const bool number = !part.empty() && part.size() < 10 &&
                        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    std::int64_t index = 0;
    if (number) std::from_chars(part.data(), part.data() + part.size(), index);
    reached = item(meter, reached, number ? Value{index} : make_text(meter, std::string(part)));
    if (fallback && reached.is_undefined()) reached = *fallback;
  }
  return reached;
}

Value attribute_of(Meter& meter, const Value& from, const Arguments& arguments, std::size_t position) {
  const Value* path = arguments.find(position, "attribute");
  return path ? reach(meter, from, *path) : from;
}

Value folded_case(Meter& meter, const Value& value) {
  return value.text() ? call_method(meter, value, "lower", {}) : value;
}

// Stable; keys are made once.
Items sorted(Meter& meter, Items items, bool reverse, const std::function<Value(const Value&)>& key) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& one : items) keyed.emplace_back(key(one), std::move(one));
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(meter, b.first, a.first) : less(meter, a.first, b.first);
  });
  items.clear();
  for (auto& pair : keyed) items.push_back(std::move(pair.second));
  return items;
}

Value trim(Meter& meter, const Value& value, const Arguments& arguments) {
  return call_method(meter, make_text(meter, str(meter, value)), "strip", arguments);
}

Value length(Meter& meter, const Value& value, const Arguments&) {
  if (value.is_undefined()) return {std::int64_t{0}};
  if (value.text()) {
    meter.spend_text(value.text()->size());
    return {static_cast<std::int64_t>(characters(*value.text()))};
  }
  if (value.list()) return {static_cast<std::int64_t>(value.list()->items.size())};
  if (value.dict()) return {static_cast<std::int64_t>(value.dict()->members.size())};
  meter.refuse(std::string("object of type '") + type_name(value) + "' has no len()");
}

Value otherwise(Meter& meter, const Value& value, const Arguments& arguments) {
  if (!value.is_undefined() && (truth(value) || !arguments.flag(1, "boolean", false))) return value;
  const Value* found = arguments.find(0, "default_value");
  return found ? *found : make_text(meter, {});
}

Value tojson(Meter& meter, const Value& value, const Arguments& arguments) {
  arguments.at_most(meter, 4, {"ensure_ascii", "indent", "separators", "sort_keys"}, "tojson");
  JsonStyle style{arguments.flag(0, "ensure_ascii", false), arguments.flag(3, "sort_keys", false), {}};
  const Value* indent = arguments.find(1, "indent");
  if (indent && !indent->is_none()) {
    if (indent->integer() && *indent->integer() > 256) meter.refuse("tojson indents by more than 256");
    style.indent = indent->text() ? *indent->text()
                                  : std::string(static_cast<std::size_t>(std::max<std::int64_t>(
                                                    0, arguments.integer(meter, 1, "indent", 0))),
                                                ' ');
    style.between_items = ",";
  }
  const Value* separators = arguments.find(2, "separators");
  if (separators && !separators->is_none()) {
    if (!separators->list() || separators->list()->items.size() != 2)
      meter.refuse("tojson needs two separators");
    style.between_items = text_of(meter, separators->list()->items[0], "separators");
    style.after_key = text_of(meter, separators->list()->items[1], "separators");
    meter.spend_text(style.between_items.size() + style.after_key.size());
    if (style.between_items.size() + style.after_key.size() > 64)
      meter.unsupported("the chat template writes JSON with separators of more than 64 bytes");
  }
  return make_text(meter, json_text(meter, value, style));
}

Value join(Meter& meter, const Value& value, const Arguments& arguments) {
  const Value* between = arguments.find(0, "d");
  const std::string separator = between ? str(meter, *between) : std::string();
  std::string out;
  bool first = true;
  for (const Value& one : iterated(meter, value)) {
    if (!first) out += separator;
    first = false;
    meter.produce(separator.size());
    out += str(meter, attribute_of(meter, one, arguments, 1));
  }
  return make_text(meter, std::move(out));
}

Value first(Meter& meter, const Value& value, const Arguments&) {
  const Items items = iterated(meter, value);
  return items.empty() ? make_undefined("No first item, sequence was empty.") : items.front();
}

Value last(Meter& meter, const Value& value, const Arguments&) {
  const Items items = iterated(meter, value);
  return items.empty() ? make_undefined("No last item, sequence was empty.") : items.back();
}

Value list(Meter& meter, const Value& value, const Arguments&) {
  return make_list(meter, iterated(meter, value));
}
Value string(Meter& meter, const Value& value, const Arguments&) {
  return make_text(meter, str(meter, value));
}
Value same(Meter&, const Value& value, const Arguments&) { return value; }

Value upper(Meter& meter, const Value& value, const Arguments&) {
  return call_method(meter, make_text(meter, str(meter, value)), "upper", {});
}
Value lower(Meter& meter, const Value& value, const Arguments&) {
  return call_method(meter, make_text(meter, str(meter, value)), "lower", {});
}
Value capitalize(Meter& meter, const Value& value, const Arguments&) {
  return call_method(meter, make_text(meter, str(meter, value)), "capitalize", {});
}

Value replace(Meter& meter, const Value& value, const Arguments& arguments) {
  const std::string text = str(meter, value);
  const std::string from = str(meter, arguments.get(meter, 0, "old", "replace")),
                    to = str(meter, arguments.get(meter, 1, "new", "replace"));
  const Value* most = arguments.find(2, "count");
  const std::int64_t limit = !most || most->is_none() ? -1 : arguments.integer(meter, 2, "count", -1);
  meter.produce(text.size());
  const std::size_t places = from.empty() ? text.size() + 1 : text.size() / from.size();
  if (to.size() > from.size())
    meter.produce(limit < 0 ? places : std::min(places, static_cast<std::size_t>(limit)),
                  to.size() - from.size());
  return make_text(meter, replaced(text, from, to, limit));
}

Value indent(Meter& meter, const Value& value, const Arguments& arguments) {
  const Value* wanted = arguments.find(0, "width");
  std::string margin = "    ";
  if (wanted && wanted->text())
    margin = *wanted->text();
  else if (wanted)
    margin.assign(
        static_cast<std::size_t>(std::clamp<std::int64_t>(arguments.integer(meter, 0, "width", 4), 0, 1024)),
        ' ');
  const bool indent_first = arguments.flag(1, "first", false), blank = arguments.flag(2, "blank", false);
  const std::string text = str(meter, value) + "\n";  // as jinja2: the last line ends, too
  meter.produce(text.size(), sizeof(std::string_view));
  const std::vector<std::string_view> lines = lines_of(text);
  std::string out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    meter.produce(margin.size() + lines[i].size());
    if (i > 0) out += '\n';
    if (i > 0 ? blank || !lines[i].empty() : indent_first) out += margin;
    out += lines[i];
  }
  return make_text(meter, std::move(out));
}

Value items(Meter& meter, const Value& value, const Arguments&) {
  if (value.is_undefined()) return make_list(meter, {});
  if (!value.dict()) meter.refuse("Can only get item pairs from a mapping.");
  return call_method(meter, value, "items", {});
}

Value dictsort(Meter& meter, const Value& value, const Arguments& arguments) {
  if (!defined(meter, value).dict()) meter.refuse("dictsort needs a dict");
  const bool exact = arguments.flag(0, "case_sensitive", false);
  const Value* by = arguments.find(1, "by");
  const std::size_t part = by && text_of(meter, *by, "dictsort") == "value" ? 1 : 0;
  Items pairs = iterated(meter, call_method(meter, value, "items", {}));
  return make_list(
      meter, sorted(meter, std::move(pairs), arguments.flag(2, "reverse", false), [&](const Value& pair) {
        const Value& key = pair.list()->items[part];
        return exact ? key : folded_case(meter, key);
      }));
}

Value sort(Meter& meter, const Value& value, const Arguments& arguments) {
  const bool exact = arguments.flag(1, "case_sensitive", false);
  return make_list(meter, sorted(meter, iterated(meter, value), arguments.flag(0, "reverse", false),
                                 [&](const Value& one) {
                                   const Value key = attribute_of(meter, one, arguments, 2);
                                   return exact ? key : folded_case(meter, key);
                                 }));
}

Value unique(Meter& meter, const Value& value, const Arguments& arguments) {
  const bool exact = arguments.flag(0, "case_sensitive", false);
  Items kept, seen;
  for (const Value& one : iterated(meter, value)) {
    const Value own = attribute_of(meter, one, arguments, 1);
    const Value key = exact ? own : folded_case(meter, own);
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& other) { return equal(meter, key, other); }))
      continue;
    seen.push_back(key);
    kept.push_back(one);
  }
  return make_list(meter, std::move(kept));
}

template <bool kGreatest>
Value extreme(Meter& meter, const Value& value, const Arguments& arguments) {
  const Items all = iterated(meter, value);
  if (all.empty()) return make_undefined("No aggregated item, sequence was empty.");
  const bool exact = arguments.flag(0, "case_sensitive", false);
  const auto key = [&](const Value& one) {
    const Value own = attribute_of(meter, one, arguments, 1);
    return exact ? own : folded_case(meter, own);
  };
  const Value* best = &all[0];
  for (const Value& one : all)
    if (kGreatest ? less(meter, key(*best), key(one)) : less(meter, key(one), key(*best))) best = &one;
  return *best;
}

Value sum(Meter& meter, const Value& value, const Arguments& arguments) {
  const Value* start = arguments.find(1, "start");
  Value total = start ? *start : Value{std::int64_t{0}};
  for (const Value& one : iterated(meter, value))
    total = arithmetic(meter, "+", total, attribute_of(meter, one, arguments, 0));
  return total;
}

Value reverse(Meter& meter, const Value& value, const Arguments&) {
  Items all = iterated(meter, value);
  std::reverse(all.begin(), all.end());
  if (!value.text()) return make_list(meter, std::move(all));
  std::string out;
  for (const Value& one : all) out += *one.text();
  return make_text(meter, std::move(out));
}

Value to_int(Meter& meter, const Value& value, const Arguments& arguments) {
  const Value* found = arguments.find(0, "default");
  Value failed = found ? *found : Value{std::int64_t{0}};
  if (arguments.integer(meter, 1, "base", 10) != 10)
    meter.unsupported("the chat template reads an integer in another base than ten");
  if (value.integer()) return {*value.integer()};
  double real = 0;
  if (value.number()) {
    real = *value.number();
  } else if (value.text()) {
    std::string_view text = stripped(*value.text());
    if (text.starts_with('+')) text.remove_prefix(1);
    std::int64_t integer = 0;
    const char* const end = text.data() + text.size();
    if (const auto result = std::from_chars(text.data(), end, integer);
        result.ec == std::errc{} && result.ptr == end)
      return {integer};
    const auto result = std::from_chars(text.data(), end, real);
    if (text.empty() || result.ec != std::errc{} || result.ptr != end) return failed;
  } else {
    return failed;
  }
  if (!(std::fabs(real) < 9.2e18)) return failed;
  return {static_cast<std::int64_t>(real)};
}

Value to_float(Meter&, const Value& value, const Arguments& arguments) {
  const Value* found = arguments.find(0, "default");
  Value failed = found ? *found : Value{0.0};
  if (value.number()) return {*value.number()};
  if (!value.text()) return failed;
  std::string_view text = stripped(*value.text());
  if (text.starts_with('+')) text.remove_prefix(1);
  double real = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), real);
  return !text.empty() && result.ec == std::errc{} && result.ptr == text.data() + text.size() ? Value{real}
                                                                                              : failed;
}

Value absolute(Meter& meter, const Value& value, const Arguments&) {
  return defined(meter, value).number() && *value.number() < 0 ? negative(meter, value) : value;
}

Value format(Meter& meter, const Value& value, const Arguments& arguments) {
  if (!arguments.named.empty()) meter.unsupported("the chat template formats with named arguments");
  return arithmetic(meter, "%", make_text(meter, str(meter, value)),
                    make_list(meter, arguments.positional, true));
}

Arguments behind(const Arguments& arguments, std::size_t positions) {
  Arguments rest = arguments;
  rest.positional.erase(
      rest.positional.begin(),
      rest.positional.begin() + static_cast<std::ptrdiff_t>(std::min(positions, rest.positional.size())));
  return rest;
}

Value map(Meter& meter, const Value& value, const Arguments& arguments) {
  Items made;
  if (!truth(value)) return make_list(meter, {});  // of none, too
  const Value* path = arguments.positional.empty() ? arguments.find(0, "attribute") : nullptr;
  const Value* fallback = path ? arguments.find(9, "default") : nullptr;
  const std::string name =
      path ? std::string() : text_of(meter, arguments.get(meter, 0, "filter", "map"), "map");
  const Arguments rest = behind(arguments, 1);
  for (const Value& one : iterated(meter, value)) {
    meter.spend(1);
    made.push_back(path ? reach(meter, one, *path, fallback) : apply_filter(meter, name, one, rest));
  }
  return make_list(meter, std::move(made));
}

// select, reject, selectattr, rejectattr
template <bool kKeep, bool kAttribute>
Value choose(Meter& meter, const Value& value, const Arguments& arguments) {
  if (!truth(value)) return make_list(meter, {});
  constexpr std::size_t kTest = kAttribute ? 1 : 0;
  const Value* path = kAttribute ? &arguments.get(meter, 0, "attribute", "selectattr") : nullptr;
  const bool tested = arguments.positional.size() > kTest;
  const std::string name = tested ? text_of(meter, arguments.positional[kTest], "select") : std::string();
  const Arguments rest = behind(arguments, kTest + 1);
  Items kept;
  for (const Value& one : iterated(meter, value)) {
    meter.spend(1);
    const Value subject = path ? reach(meter, one, *path) : one;
    if ((tested ? apply_test(meter, name, subject, rest) : truth(subject)) == kKeep) kept.push_back(one);
  }
  return make_list(meter, std::move(kept));
}

struct Named {
  std::string_view name;
  Filter filter;
};

constexpr Named kFilters[] = {
    {"trim", trim},
    {"length", length},
    {"count", length},
    {"default", otherwise},
    {"d", otherwise},
    {"tojson", tojson},
    {"join", join},
    {"first", first},
    {"last", last},
    {"list", list},
    {"string", string},
    {"safe", same},
    {"upper", upper},
    {"lower", lower},
    {"capitalize", capitalize},
    {"replace", replace},
    {"indent", indent},
    {"items", items},
    {"dictsort", dictsort},
    {"sort", sort},
    {"unique", unique},
    {"min", extreme<false>},
    {"max", extreme<true>},
    {"sum", sum},
    {"reverse", reverse},
    {"int", to_int},
    {"float", to_float},
    {"abs", absolute},
    {"format", format},
    {"map", map},
    {"select", choose<true, false>},
    {"reject", choose<false, false>},
    {"selectattr", choose<true, true>},
    {"rejectattr", choose<false, true>},
};

}  // namespace

Value apply_filter(Meter& meter, const std::string& name, const Value& subject, const Arguments& arguments) {
  meter.spend(1);
  const auto* found = std::find_if(std::begin(kFilters), std::end(kFilters),
                                   [&](const Named& one) { return one.name == name; });
  if (found == std::end(kFilters))
    meter.unsupported("the chat template uses the filter '" + name.substr(0, 40) + "'");
  return found->filter(meter, subject, arguments);
}

}  // namespace llmq::jinja

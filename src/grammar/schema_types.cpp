// What the keywords of each type of a JSON schema make of a value's text.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <set>
#include <string_view>

#include "grammar/regex_syntax.h"
#include "grammar/schema_compiler.h"

namespace llmq {
namespace {

constexpr std::int64_t kMostCount = 10'000, kMostMultiples = 1000;

const std::map<std::string_view, std::string_view> kFormats = {
    {"date", R"(\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8]))"},  // days that every month has
    {"time", R"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))"},
    {"date-time", R"(\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])T)"
                  R"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))"},
    {"uuid", R"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"},
    {"ipv4", R"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(\.(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)){3})"},
    {"email",
     R"([A-Za-z0-9_+-]{1,32}(\.[A-Za-z0-9_+-]{1,32}){0,3}@([A-Za-z0-9]{1,32}\.){1,4}[A-Za-z]{2,16})"},
};

// The fewest digits that read back as this value.
DecimalBound bound_of(double value) {
  std::array<char, 512> digits{};
  const auto written =
      std::to_chars(digits.data(), digits.data() + digits.size(), std::abs(value), std::chars_format::fixed);
  const std::string text(digits.data(), written.ptr);
  const std::size_t point = std::min(text.find('.'), text.size());
  return {value < 0, text.substr(0, point), text.substr(std::min(point + 1, text.size())), false};
}

}  // namespace

TextPlace SchemaCompiler::of_type(const std::string& type, const Json& schema, const std::string& where,
                                  TextPlace next) {
  if (type == "object") return object(schema, where, next);
  if (type == "array") return array(schema, where, next);
  if (type == "string") return string(schema, where, next);
  if (type == "integer") return integer(schema, where, next);
  if (type == "number") return number(schema, where, next);
  return type == "boolean" ? texts_.boolean(next) : texts_.null(next);
}

std::optional<std::int64_t> SchemaCompiler::count(const Json& schema, const char* key,
                                                  const std::string& where) const {
  const Json* found = schema.find(key);
  if (!found) return std::nullopt;
  if (!found->is_integer() || found->as_integer() < 0)
    refuse(where + "." + key, "expected an integer of 0 or more");
  if (found->as_integer() > kMostCount)
    unsupported(where + "." + key, fmt::format("{} is more than {}", found->as_integer(), kMostCount));
  return found->as_integer();
}

void SchemaCompiler::check_order(std::int64_t least, const std::optional<std::int64_t>& most,
                                 const std::string& where) const {
  if (most && *most < least) refuse(where, fmt::format("at least {} and at most {} cannot be", least, *most));
}

TextPlace SchemaCompiler::string(const Json& schema, const std::string& where, TextPlace next) {
  const std::int64_t least = count(schema, "minLength", where).value_or(0);
  const std::optional<std::int64_t> most = count(schema, "maxLength", where);
  check_order(least, most, where);
  const Json *pattern = schema.find("pattern"), *format = schema.find("format");
  if (!pattern && !format)
    return least == 0 && !most ? texts_.string(next) : texts_.string(least, most, next);
  const std::string name = where + (pattern ? ".pattern" : ".format");
  if ((pattern && format) || least > 0 || most)
    unsupported(name, "only one of 'pattern', 'format' and a length is supported for a string");
  const Json& one = pattern ? *pattern : *format;
  if (!one.is_string()) refuse(name, fmt::format("expected a string, found {}", one.kind()));
  std::string_view expression = one.as_string();
  if (format) {
    const auto known = kFormats.find(expression);
    if (known == kFormats.end())
      unsupported(name, fmt::format("the format '{}' is not supported", shown_key(one.as_string())));
    expression = known->second;
  }
  return builder_.literal(
      "\"", regex_texts(builder_, expression, pattern ? RegexReach::kInside : RegexReach::kWhole,
                        Spelling::kJsonString, name, builder_.literal("\"", next)));
}

TextPlace SchemaCompiler::integer(const Json& schema, const std::string& where, TextPlace next) {
  std::int64_t low = -JsonTexts::kGreatest, high = JsonTexts::kGreatest;
  bool bounded = false;
  const auto bound = [&](const char* key, std::int64_t shift, bool lower) {
    const Json* found = schema.find(key);
    if (!found) return;
    bounded = true;
    if (!found->is_integer() || std::abs(found->as_double()) > static_cast<double>(JsonTexts::kGreatest))
      unsupported(where + "." + key, fmt::format("expected an integer between -{} and {}",
                                                 JsonTexts::kGreatest, JsonTexts::kGreatest));
    const std::int64_t limit = found->as_integer() + shift;
    (lower ? low : high) = lower ? std::max(low, limit) : std::min(high, limit);
  };
  bound("minimum", 0, true);
  bound("maximum", 0, false);
  bound("exclusiveMinimum", 1, true);
  bound("exclusiveMaximum", -1, false);
  if (low > high) refuse(where, fmt::format("no integer is at least {} and at most {}", low, high));
  if (const Json* factor = schema.find("multipleOf")) return multiple(*factor, low, high, where, next);
  return bounded ? integer(low, high, next) : texts_.integer(next);
}

TextPlace SchemaCompiler::integer(std::int64_t low, std::int64_t high, TextPlace next) {
  return texts_.between(bound_of(static_cast<double>(low)), bound_of(static_cast<double>(high)), false, next);
}

TextPlace SchemaCompiler::number(const Json& schema, const std::string& where, TextPlace next) {
  const double greatest = static_cast<double>(JsonTexts::kGreatest);
  double least = -greatest, most = greatest;
  DecimalBound low = bound_of(least), high = bound_of(most);
  bool bounded = false;
  const auto bound = [&](const char* key, bool lower, bool open) {
    const Json* found = schema.find(key);
    if (!found) return;
    bounded = true;
    const std::string name = where + "." + key;
    if (!found->is_number() || std::abs(found->as_double()) > greatest)
      unsupported(name, fmt::format("expected a number between -{} and {}", JsonTexts::kGreatest,
                                    JsonTexts::kGreatest));
    const double value = found->as_double();
    DecimalBound digits = bound_of(value);
    if (digits.whole.size() + digits.fraction.size() > DecimalBound::kDigits)
      unsupported(name, fmt::format("has more than {} digits", DecimalBound::kDigits));
    double& closest = lower ? least : most;
    if (lower ? value < closest : value > closest) return;  // the other keyword asks for more
    closest = value;
    digits.open = open;
    (lower ? low : high) = digits;
  };
  bound("minimum", true, false);
  bound("maximum", false, false);
  bound("exclusiveMinimum", true, true);
  bound("exclusiveMaximum", false, true);
  if (!bounded) return texts_.number(next);
  const TextPlace place = texts_.between(low, high, true, next);
  if (place == JsonTexts::kNone)
    refuse(where, fmt::format("no number of at most {} digits keeps its bounds", DecimalBound::kDigits));
  return place;
}

// A few are listed; without an upper bound they are known by their remainder.
TextPlace SchemaCompiler::multiple(const Json& word, std::int64_t low, std::int64_t high,
                                   const std::string& where, TextPlace next) {
  const std::string name = where + ".multipleOf";
  if (!word.is_integer() || word.as_integer() < 1) unsupported(name, "expected an integer of 1 or more");
  const std::int64_t factor = word.as_integer(), first = low / factor + (low % factor > 0),
                     last = high / factor - (high % factor < 0);
  if (first > last)
    refuse(where, fmt::format("no multiple of {} is at least {} and at most {}", factor, low, high));
  if (factor == 1) return integer(low, high, next);
  if (last - first < kMostMultiples) {
    std::vector<TextPlace> ways;
    for (std::int64_t i = first; i <= last; ++i)
      ways.push_back(builder_.literal(std::to_string(i * factor), next));
    return builder_.either(ways);
  }
  const bool all = low == -JsonTexts::kGreatest, from_zero = low > -factor && low <= 0;
  if (factor > JsonTexts::kGreatestFactor || high != JsonTexts::kGreatest || !(all || from_zero))
    unsupported(name, fmt::format("more than {} multiples are supported for factors up to {}, without an "
                                  "upper bound, of all integers or from 0 on",
                                  kMostMultiples, JsonTexts::kGreatestFactor));
  return texts_.multiple(factor, all, next);
}

// Places are made from the last item to the first: a loop where there is no last one, and before it the
// items that are counted.
TextPlace SchemaCompiler::array(const Json& schema, const std::string& where, TextPlace next) {
  const std::int64_t least = count(schema, "minItems", where).value_or(0);
  std::optional<std::int64_t> most = count(schema, "maxItems", where);
  const Json *items = schema.find("items"), *prefix = schema.find("prefixItems");
  std::vector<TextPlace> first;
  if (prefix && (!prefix->is_array() || prefix->items().empty()))
    refuse(where + ".prefixItems", "expected a list of at least one schema");
  for (std::size_t i = 0; prefix && i < prefix->items().size(); ++i)
    first.push_back(value(prefix->items()[i], fmt::format("{}.prefixItems.{}", where, i), false, kTextEnd));
  const auto listed_items = static_cast<std::int64_t>(first.size());
  const bool no_others = prefix && items && items->is_bool() && !items->as_bool();
  if (no_others) most = std::min(most.value_or(listed_items), listed_items);
  check_order(least, most, where);
  const TextPlace item = no_others ? kTextEnd
                         : items   ? value(*items, where + ".items", false, kTextEnd)
                                   : texts_.any(kTextEnd);
  if (least == 0 && !most && first.empty()) return texts_.sequence('[', ']', item, next);
  const TextPlace close = builder_.literal("]", next), ending = texts_.space(close);
  if (most == 0) return builder_.literal("[", close);
  const auto item_at = [&](std::int64_t i) {
    return i < listed_items ? first[static_cast<std::size_t>(i)] : item;
  };
  TextPlace place = ending;  // behind `written` items
  std::int64_t written = most ? *most : std::max({least, listed_items, std::int64_t{1}});
  if (!most) {
    place = builder_.open();
    builder_.close(place, texts_.comma(builder_.call(item, place)), ending);
  }
  while (--written > 0) {
    const TextPlace more = texts_.comma(builder_.call(item_at(written), place));
    place = written >= least ? builder_.either(more, ending) : more;
  }
  place = texts_.space(builder_.call(item_at(0), place));
  return builder_.literal("[", least > 0 ? place : builder_.either(place, close));
}

std::set<std::string> SchemaCompiler::required_of(const Json& schema, const std::string& where) const {
  std::set<std::string> required;
  const Json* list = schema.find("required");
  if (!list) return required;
  if (!list->is_array()) refuse(where + ".required", fmt::format("expected a list, found {}", list->kind()));
  for (const Json& name : list->items()) {
    if (!name.is_string()) refuse(where + ".required", fmt::format("expected names, found {}", name.kind()));
    required.insert(name.as_string());
  }
  return required;
}

// "{" then for each member, in two rows: none was written yet, some were. Optional ones may be passed over.
TextPlace SchemaCompiler::object(const Json& schema, const std::string& where, TextPlace next) {
  const Json *properties = schema.find("properties"), *others = schema.find("additionalProperties");
  const std::set<std::string> required = required_of(schema, where);
  if (properties && !properties->is_object())
    refuse(where + ".properties", fmt::format("expected an object, found {}", properties->kind()));
  std::set<std::string_view> described;
  if (properties)
    for (const Json::Member& member : properties->members()) described.insert(member.first);
  for (const std::string& name : required)
    if (described.count(name) == 0)
      unsupported(where + ".required",
                  fmt::format("'{}' is required and not among 'properties'", shown_key(name)));
  if (others && !others->is_bool() && properties && !properties->members().empty())
    unsupported(where + ".additionalProperties",
                "a schema for other members beside 'properties' is not supported");
  if (!properties || properties->members().empty()) return any_members(others, where, next);
  const TextPlace close = builder_.literal("}", next);
  TextPlace none = close, some = texts_.space(close);
  for (std::size_t i = properties->members().size(); i-- > 0;) {
    const Json::Member& member = properties->members()[i];
    const TextPlace content =
        value(member.second, where + ".properties." + shown_key(member.first), false, some);
    const TextPlace written = builder_.literal(Json(member.first).dump(), texts_.colon(content));
    const TextPlace first = texts_.space(written), another = texts_.comma(written);
    const bool optional = required.count(member.first) == 0;
    none = optional ? builder_.either(first, none) : first;
    some = optional ? builder_.either(another, some) : another;
  }
  return builder_.literal("{", none);
}

TextPlace SchemaCompiler::any_members(const Json* others, const std::string& where, TextPlace next) {
  if (!others || (others->is_bool() && others->as_bool())) return texts_.object(next);
  if (others->is_bool()) return builder_.literal("{}", next);
  const TextPlace member =
      texts_.string(texts_.colon(value(*others, where + ".additionalProperties", false, kTextEnd)));
  return texts_.sequence('{', '}', member, next);
}

}  // namespace llmq

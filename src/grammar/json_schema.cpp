#include "grammar/json_schema.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "grammar/json_texts.h"
#include "grammar/regex_syntax.h"
#include "grammar/schema_overlap.h"

namespace llmq {
namespace {

constexpr TextPlace kEnd = TextProgramBuilder::kEnd;
constexpr std::int64_t kMostCount = 10'000, kMostMultiples = 1000;
constexpr std::size_t kShownKey = 64;

using Words = std::vector<std::string_view>;
const Words kNotes = {"title",    "description", "default",  "examples", "deprecated",
                      "readOnly", "writeOnly",   "$comment", "$defs",    "definitions"};
const std::map<std::string_view, Words> kKeywordsOf = {
    {"object", {"properties", "required", "additionalProperties"}},
    {"array", {"items", "prefixItems", "minItems", "maxItems"}},
    {"string", {"minLength", "maxLength", "pattern", "format"}},
    {"integer", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
    {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
    {"boolean", {}},
    {"null", {}},
};
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

bool has(const Words& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string shown_key(const std::string& key) {
  return key.size() <= kShownKey ? key : key.substr(0, kShownKey) + "...";
}

// Whether a value is of a type of JSON schemas.
bool is_of(const Json& value, std::string_view type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "integer") return value.is_integer();
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_bool();
  return value.is_null();
}

// The fewest digits that read back as this value.
DecimalBound bound_of(double value) {
  std::array<char, 512> digits{};
  const auto written =
      std::to_chars(digits.data(), digits.data() + digits.size(), std::abs(value), std::chars_format::fixed);
  const std::string text(digits.data(), written.ptr);
  const std::size_t point = std::min(text.find('.'), text.size());
  return {value < 0, text.substr(0, point), text.substr(std::min(point + 1, text.size())), false};
}

class Compiler {
 public:
  Compiler(TextProgramBuilder& builder, const Json& root, std::string where)
      : builder_(builder), texts_(builder), root_(root), where_(std::move(where)) {}

  // Rules are compiled one after another, not inside each other: a long chain of references needs no deep
  // stack.
  TextPlace compile() {
    const TextPlace start = rule_of("#", where_);
    while (!waiting_.empty()) {
      const std::string name = std::move(waiting_.back());
      waiting_.pop_back();
      current_ = name;
      const TextPlace body = value(*rules_.at(name).schema, place_name(name), true, kEnd);
      builder_.close(rules_.at(name).place, body, body);
    }
    refuse_circles();
    return start;
  }

 private:
  struct Rule {
    const Json* schema;
    TextPlace place;
    std::set<std::string> begins_with;  // rules that stand at its very start
  };

  [[noreturn]] void refuse(const std::string& where, const std::string& message) const {
    fail(ErrorKind::kBadInput, {message, {}, where, {}});
  }
  [[noreturn]] void unsupported(const std::string& where, const std::string& message) const {
    fail(ErrorKind::kUnsupported, {message, {}, where, {}});
  }

  void check_keys(const Json& schema, const Words& known, const std::string& where,
                  const char* beside) const {
    for (const Json::Member& member : schema.members()) {
      const std::string& key = member.first;
      if (has(known, key) || has(kNotes, key) || (&schema == &root_ && (key == "$schema" || key == "$id")))
        continue;
      unsupported(where + "." + shown_key(key),
                  fmt::format("'{}' is not supported{}", shown_key(key), beside));
    }
  }

  // "#/$defs/node" -> "schema.$defs.node"
  std::string place_name(const std::string& reference) const {
    std::string name = reference.substr(1);
    std::replace(name.begin(), name.end(), '/', '.');
    return where_ + name;
  }

  // What a reference means: "#", or "#/" and keys.
  const Json& target(const std::string& reference, const std::string& where) const {
    if (!reference.starts_with('#') || (reference.size() > 1 && reference[1] != '/'))
      unsupported(where, "only references inside the schema ('#/...') are supported");
    const Json* at = &root_;
    for (std::size_t begin = 2; begin <= reference.size() && reference.size() > 1;) {
      const std::size_t end = std::min(reference.find('/', begin), reference.size());
      std::string key = reference.substr(begin, end - begin);
      if (key.find_first_of("~%") != std::string::npos)
        unsupported(where, "references with '~' or '%' are not supported");
      const Json* next = at->find(key);
      if (at->is_array()) {
        std::size_t index = 0;
        const auto number = std::from_chars(key.data(), key.data() + key.size(), index);
        if (number.ec == std::errc() && number.ptr == key.data() + key.size() && index < at->items().size())
          next = &at->items()[index];
      }
      if (!next) refuse(where, fmt::format("refers to '{}', which is not there", shown_key(reference)));
      at = next;
      begin = end + 1;
    }
    return *at;
  }

  TextPlace rule_of(const std::string& name, const std::string& where) {
    const auto known = rules_.find(name);
    if (known != rules_.end()) return known->second.place;
    const Json& schema = target(name, where);
    const TextPlace place = builder_.open();
    rules_.emplace(name, Rule{&schema, place, {}});
    waiting_.push_back(name);
    return place;
  }

  // A schema that is itself, without anything before it, would be no text at all.
  void refuse_circles() const {
    std::map<std::string, int> open;  // rules at the start of which it stands
    for (const auto& entry : rules_)
      for (const std::string& other : entry.second.begins_with) ++open[other];
    std::vector<std::string> free;
    for (const auto& entry : rules_)
      if (open[entry.first] == 0) free.push_back(entry.first);
    std::size_t seen = 0;
    for (; !free.empty(); ++seen) {
      const std::string name = free.back();
      free.pop_back();
      for (const std::string& other : rules_.at(name).begins_with)
        if (--open[other] == 0) free.push_back(other);
    }
    if (seen < rules_.size())
      refuse(where_, "a '$ref' leads back to itself without an object or a list between");
  }

  // `front`: at the very start of the rule that is compiled.
  TextPlace value(const Json& schema, const std::string& where, bool front, TextPlace next) {
    builder_.charge();
    if (schema.is_bool() && schema.as_bool()) return texts_.any(next);
    if (schema.is_bool()) unsupported(where, "'false' allows no value");
    if (!schema.is_object()) refuse(where, fmt::format("expected a schema, found {}", schema.kind()));
    if (const Json* reference = schema.find("$ref")) return referred(schema, *reference, where, front, next);
    if (schema.find("enum") || schema.find("const")) return listed(schema, where, next);
    if (const Json* ways = schema.find("anyOf")) return any_of(schema, *ways, "anyOf", where, front, next);
    if (const Json* ways = schema.find("oneOf")) return one_of(schema, *ways, where, front, next);
    if (const Json* all = schema.find("allOf")) {
      if (all->is_array() && all->items().size() != 1)
        unsupported(where + ".allOf", "'allOf' of several schemas is not supported");
      return any_of(schema, *all, "allOf", where, front, next);
    }
    return typed(schema, where, next);
  }

  TextPlace referred(const Json& schema, const Json& reference, const std::string& where, bool front,
                     TextPlace next) {
    check_keys(schema, {"$ref"}, where, " beside '$ref'");
    if (!reference.is_string())
      refuse(where + ".$ref", fmt::format("expected a string, found {}", reference.kind()));
    const std::string& name = reference.as_string();
    const TextPlace rule = rule_of(name, where + ".$ref");
    if (front) rules_.at(current_).begins_with.insert(name);
    return builder_.call(rule, next);
  }

  TextPlace any_of(const Json& schema, const Json& ways, const std::string& key, const std::string& where,
                   bool front, TextPlace next) {
    Words known = {key};
    if (key == "oneOf") known.push_back("discriminator");  // OpenAPI's hint to readers: it forbids nothing
    check_keys(schema, known, where, fmt::format(" beside '{}'", key).c_str());
    const std::string name = where + "." + key;
    if (!ways.is_array() || ways.items().empty()) refuse(name, "expected a list of at least one schema");
    std::vector<TextPlace> places;
    for (std::size_t i = 0; i < ways.items().size(); ++i)
      places.push_back(value(ways.items()[i], fmt::format("{}.{}", name, i), front, next));
    return builder_.either(places);
  }

  TextPlace one_of(const Json& schema, const Json& ways, const std::string& where, bool front,
                   TextPlace next) {
    const SchemaTarget target_of = [&](const std::string& reference) -> const Json& {
      return target(reference, where + ".oneOf");
    };
    for (std::size_t b = 1; ways.is_array() && b < ways.items().size(); ++b)
      for (std::size_t a = 0; a < b; ++a)
        if (may_overlap(ways.items()[a], ways.items()[b], target_of, [this] { builder_.charge(); }))
          unsupported(where + ".oneOf",
                      fmt::format("'oneOf' is supported where no value satisfies two of its schemas by their "
                                  "types, values or a required member; {} and {} may share one",
                                  a, b));
    return any_of(schema, ways, "oneOf", where, front, next);
  }

  std::vector<std::string> types_of(const Json& schema, const std::string& where) const {
    const Json* type = schema.find("type");
    if (!type) return {};
    std::vector<std::string> types;
    const auto add = [&](const Json& one) {
      if (!one.is_string() || kKeywordsOf.count(one.as_string()) == 0)
        refuse(where + ".type",
               "expected 'object', 'array', 'string', 'integer', 'number', 'boolean' or 'null', or a list of "
               "them");
      types.push_back(one.as_string());
    };
    if (!type->is_array()) {
      add(*type);
      return types;
    }
    for (const Json& one : type->items()) add(one);
    if (types.empty()) refuse(where + ".type", "is an empty list");
    return types;
  }

  TextPlace listed(const Json& schema, const std::string& where, TextPlace next) {
    check_keys(schema, {schema.find("enum") ? "enum" : "const", "type"}, where, " beside 'enum' or 'const'");
    const std::vector<std::string> types = types_of(schema, where);
    const Json* list = schema.find("enum");
    if (list && !list->is_array())
      refuse(where + ".enum", fmt::format("expected a list, found {}", list->kind()));
    std::vector<TextPlace> ways;
    const auto add = [&](const Json& one) {
      if (types.empty() ||
          std::any_of(types.begin(), types.end(), [&](const std::string& type) { return is_of(one, type); }))
        ways.push_back(builder_.literal(one.dump(), next));
    };
    if (list)
      for (const Json& one : list->items()) add(one);
    else
      add(*schema.find("const"));
    if (ways.empty()) refuse(where + (list ? ".enum" : ".const"), "has no value of the type that is given");
    return builder_.either(ways);
  }

  TextPlace typed(const Json& schema, const std::string& where, TextPlace next) {
    std::vector<std::string> types = types_of(schema, where);
    if (types.empty()) types = meant_types(schema);
    Words known = {"type"};
    for (const std::string& type : types) {
      const Words& more = kKeywordsOf.at(type);
      known.insert(known.end(), more.begin(), more.end());
    }
    check_keys(schema, known, where,
               types.empty()
                   ? ""
                   : fmt::format(" for the type {}", fmt::format("'{}'", types.front()) +
                                                         (types.size() > 1 ? " and the others" : ""))
                         .c_str());
    if (types.empty()) return texts_.any(next);
    std::vector<TextPlace> ways;
    for (const std::string& type : types) ways.push_back(of_type(type, schema, where, next));
    return builder_.either(ways);
  }

  // Without a type, the one that its keywords speak of.
  std::vector<std::string> meant_types(const Json& schema) const {
    for (const auto& entry : kKeywordsOf)
      for (const std::string_view key : entry.second)
        if (schema.find(key)) return {std::string(entry.first)};
    return {};
  }

  TextPlace of_type(const std::string& type, const Json& schema, const std::string& where, TextPlace next) {
    if (type == "object") return object(schema, where, next);
    if (type == "array") return array(schema, where, next);
    if (type == "string") return string(schema, where, next);
    if (type == "integer") return integer(schema, where, next);
    if (type == "number") return number(schema, where, next);
    return type == "boolean" ? texts_.boolean(next) : texts_.null(next);
  }

  std::optional<std::int64_t> count(const Json& schema, const char* key, const std::string& where) const {
    const Json* found = schema.find(key);
    if (!found) return std::nullopt;
    if (!found->is_integer() || found->as_integer() < 0)
      refuse(where + "." + key, "expected an integer of 0 or more");
    if (found->as_integer() > kMostCount)
      unsupported(where + "." + key, fmt::format("{} is more than {}", found->as_integer(), kMostCount));
    return found->as_integer();
  }
  void check_order(std::int64_t least, const std::optional<std::int64_t>& most,
                   const std::string& where) const {
    if (most && *most < least)
      refuse(where, fmt::format("at least {} and at most {} cannot be", least, *most));
  }

  TextPlace string(const Json& schema, const std::string& where, TextPlace next) {
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

  TextPlace integer(const Json& schema, const std::string& where, TextPlace next) {
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
  TextPlace integer(std::int64_t low, std::int64_t high, TextPlace next) {
    return texts_.between(bound_of(static_cast<double>(low)), bound_of(static_cast<double>(high)), false,
                          next);
  }

  TextPlace number(const Json& schema, const std::string& where, TextPlace next) {
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
  TextPlace multiple(const Json& word, std::int64_t low, std::int64_t high, const std::string& where,
                     TextPlace next) {
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
  TextPlace array(const Json& schema, const std::string& where, TextPlace next) {
    const std::int64_t least = count(schema, "minItems", where).value_or(0);
    std::optional<std::int64_t> most = count(schema, "maxItems", where);
    const Json *items = schema.find("items"), *prefix = schema.find("prefixItems");
    std::vector<TextPlace> first;
    if (prefix && (!prefix->is_array() || prefix->items().empty()))
      refuse(where + ".prefixItems", "expected a list of at least one schema");
    for (std::size_t i = 0; prefix && i < prefix->items().size(); ++i)
      first.push_back(value(prefix->items()[i], fmt::format("{}.prefixItems.{}", where, i), false, kEnd));
    const auto listed_items = static_cast<std::int64_t>(first.size());
    const bool no_others = prefix && items && items->is_bool() && !items->as_bool();
    if (no_others) most = std::min(most.value_or(listed_items), listed_items);
    check_order(least, most, where);
    const TextPlace item = no_others ? kEnd
                           : items   ? value(*items, where + ".items", false, kEnd)
                                     : texts_.any(kEnd);
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

  std::set<std::string> required_of(const Json& schema, const std::string& where) const {
    std::set<std::string> required;
    const Json* list = schema.find("required");
    if (!list) return required;
    if (!list->is_array())
      refuse(where + ".required", fmt::format("expected a list, found {}", list->kind()));
    for (const Json& name : list->items()) {
      if (!name.is_string())
        refuse(where + ".required", fmt::format("expected names, found {}", name.kind()));
      required.insert(name.as_string());
    }
    return required;
  }

  // "{" then for each member, in two rows: none was written yet, some were. Optional ones may be passed over.
  TextPlace object(const Json& schema, const std::string& where, TextPlace next) {
    const Json *properties = schema.find("properties"), *others = schema.find("additionalProperties");
    const std::set<std::string> required = required_of(schema, where);
    if (properties && !properties->is_object())
      refuse(where + ".properties", fmt::format("expected an object, found {}", properties->kind()));
    for (const std::string& name : required)
      if (!properties || !properties->find(name))
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

  TextPlace any_members(const Json* others, const std::string& where, TextPlace next) {
    if (!others || (others->is_bool() && others->as_bool())) return texts_.object(next);
    if (others->is_bool()) return builder_.literal("{}", next);
    const TextPlace member =
        texts_.string(texts_.colon(value(*others, where + ".additionalProperties", false, kEnd)));
    return texts_.sequence('{', '}', member, next);
  }

  TextProgramBuilder& builder_;
  JsonTexts texts_;
  const Json& root_;
  std::string where_;
  std::map<std::string, Rule> rules_;  // by the reference
  std::vector<std::string> waiting_;
  std::string current_;
};

}  // namespace

TextPlace schema_texts(TextProgramBuilder& builder, const Json& schema, const std::string& where) {
  return Compiler(builder, schema, where).compile();
}

}  // namespace llmq

#include "grammar/json_schema.h"

#include <algorithm>
#include <charconv>

#include "grammar/schema_compiler.h"
#include "grammar/schema_overlap.h"

namespace llmq {
namespace {

const std::vector<std::string_view> kNotes = {"title",      "description", "default",   "examples",
                                              "deprecated", "readOnly",    "writeOnly", "$comment",
                                              "$defs",      "definitions"};
const std::map<std::string_view, std::vector<std::string_view>> kKeywordsOf = {
    {"object", {"properties", "required", "additionalProperties"}},
    {"array", {"items", "prefixItems", "minItems", "maxItems"}},
    {"string", {"minLength", "maxLength", "pattern", "format"}},
    {"integer", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
    {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
    {"boolean", {}},
    {"null", {}},
};

bool has(const std::vector<std::string_view>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
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

}  // namespace

TextPlace SchemaCompiler::compile() {
  const TextPlace start = rule_of("#", where_);
  while (!waiting_.empty()) {
    const std::string name = std::move(waiting_.back());
    waiting_.pop_back();
    current_ = name;
    const TextPlace body = value(*rules_.at(name).schema, place_name(name), true, kTextEnd);
    builder_.close(rules_.at(name).place, body, body);
  }
  refuse_circles();
  return start;
}

std::string SchemaCompiler::shown_key(const std::string& key) {
  constexpr std::size_t kShown = 64;
  return key.size() <= kShown ? key : key.substr(0, kShown) + "...";
}

void SchemaCompiler::refuse(const std::string& where, const std::string& message) const {
  fail(ErrorKind::kBadInput, {message, {}, where, {}});
}

void SchemaCompiler::unsupported(const std::string& where, const std::string& message) const {
  fail(ErrorKind::kUnsupported, {message, {}, where, {}});
}

void SchemaCompiler::check_keys(const Json& schema, const Words& known, const std::string& where,
                                const char* beside) const {
  for (const Json::Member& member : schema.members()) {
    const std::string& key = member.first;
    if (has(known, key) || has(kNotes, key) || (&schema == &root_ && (key == "$schema" || key == "$id")))
      continue;
    unsupported(where + "." + shown_key(key), fmt::format("'{}' is not supported{}", shown_key(key), beside));
  }
}

// "#/$defs/node" -> "schema.$defs.node"
std::string SchemaCompiler::place_name(const std::string& reference) const {
  std::string name = reference.substr(1);
  std::replace(name.begin(), name.end(), '/', '.');
  return where_ + name;
}

// What a reference means: "#", or "#/" and keys.
const Json& SchemaCompiler::target(const std::string& reference, const std::string& where) const {
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

TextPlace SchemaCompiler::rule_of(const std::string& name, const std::string& where) {
  const auto known = rules_.find(name);
  if (known != rules_.end()) return known->second.place;
  const Json& schema = target(name, where);
  const TextPlace place = builder_.open();
  rules_.emplace(name, Rule{&schema, place, {}});
  waiting_.push_back(name);
  return place;
}

// A schema that is itself, without anything before it, would be no text at all.
void SchemaCompiler::refuse_circles() const {
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

TextPlace SchemaCompiler::value(const Json& schema, const std::string& where, bool front, TextPlace next) {
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

TextPlace SchemaCompiler::referred(const Json& schema, const Json& reference, const std::string& where,
                                   bool front, TextPlace next) {
  check_keys(schema, {"$ref"}, where, " beside '$ref'");
  if (!reference.is_string())
    refuse(where + ".$ref", fmt::format("expected a string, found {}", reference.kind()));
  const std::string& name = reference.as_string();
  const TextPlace rule = rule_of(name, where + ".$ref");
  if (front) rules_.at(current_).begins_with.insert(name);
  return builder_.call(rule, next);
}

TextPlace SchemaCompiler::any_of(const Json& schema, const Json& ways, const std::string& key,
                                 const std::string& where, bool front, TextPlace next) {
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

TextPlace SchemaCompiler::one_of(const Json& schema, const Json& ways, const std::string& where, bool front,
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

std::vector<std::string> SchemaCompiler::types_of(const Json& schema, const std::string& where) const {
  const Json* type = schema.find("type");
  if (!type) return {};
  std::vector<std::string> types;
  const auto add = [&](const Json& one) {
    if (!one.is_string() || kKeywordsOf.count(one.as_string()) == 0)
      refuse(where + ".type",
             "expected 'object', 'array', 'string', 'integer', 'number', 'boolean' or 'null', or a list of "
             "them");
    if (std::find(types.begin(), types.end(), one.as_string()) != types.end())
      refuse(where + ".type", fmt::format("names '{}' twice", one.as_string()));
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

TextPlace SchemaCompiler::listed(const Json& schema, const std::string& where, TextPlace next) {
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

TextPlace SchemaCompiler::typed(const Json& schema, const std::string& where, TextPlace next) {
  std::vector<std::string> types = types_of(schema, where);
  if (types.empty()) types = meant_types(schema);
  Words known = {"type"};
  for (const std::string& type : types) {
    const Words& more = kKeywordsOf.at(type);
    known.insert(known.end(), more.begin(), more.end());
  }
  check_keys(schema, known, where,
             types.empty() ? ""
                           : fmt::format(" for the type {}", fmt::format("'{}'", types.front()) +
                                                                 (types.size() > 1 ? " and the others" : ""))
                                 .c_str());
  if (types.empty()) return texts_.any(next);
  std::vector<TextPlace> ways;
  ways.reserve(types.size());
  for (const std::string& type : types) ways.push_back(of_type(type, schema, where, next));
  return builder_.either(ways);
}

// Without a type, the one that its keywords speak of.
std::vector<std::string> SchemaCompiler::meant_types(const Json& schema) const {
  for (const auto& entry : kKeywordsOf)
    for (const std::string_view key : entry.second)
      if (schema.find(key)) return {std::string(entry.first)};
  return {};
}

TextPlace schema_texts(TextProgramBuilder& builder, const Json& schema, const std::string& where) {
  return SchemaCompiler(builder, schema, where).compile();
}

}  // namespace llmq

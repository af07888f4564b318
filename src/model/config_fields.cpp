// Typed, range-checked reads of a config object. Constraints: `object` is a JSON object.
#include "model/config_fields.h"

#include <cmath>

#include "base/error.h"

namespace llmq {

ConfigFields::ConfigFields(const Json& object, std::string file, std::string where)
    : object_(object), file_(std::move(file)), where_(std::move(where)) {
  if (!object.is_object())
    fail(ErrorKind::kBadInput,
         {fmt::format("expected an object, found {}", object.kind()), file_, where_, {}});
}

std::string ConfigFields::place(std::string_view key) const {
  return where_.empty() ? std::string(key) : fmt::format("{}.{}", where_, key);
}

void ConfigFields::bad(std::string_view key, std::string message, std::string hint) const {
  fail(ErrorKind::kBadInput, {std::move(message), file_, place(key), std::move(hint)});
}

void ConfigFields::unsupported(std::string_view key, std::string message, std::string hint) const {
  fail(ErrorKind::kUnsupported, {std::move(message), file_, place(key), std::move(hint)});
}

const Json* ConfigFields::find(std::string_view key) {
  read_.emplace(key);
  const Json* value = object_.find(key);
  return value != nullptr && value->is_null() ? nullptr : value;
}

bool ConfigFields::is_null(std::string_view key) const {
  const Json* value = object_.find(key);
  return value != nullptr && value->is_null();
}

std::int64_t ConfigFields::integer(std::string_view key, IntegerRange range) {
  const Json* value = find(key);
  if (value == nullptr) bad(key, "is missing", "an integer is needed here");
  if (!value->is_integer()) bad(key, fmt::format("expected an integer, found {}", value->kind()));
  const std::int64_t found = value->as_integer();
  if (found < range.least || found > range.most)
    bad(key, fmt::format("is {}, which is not between {} and {}", found, range.least, range.most));
  return found;
}

std::int64_t ConfigFields::integer(std::string_view key, IntegerRange range, std::int64_t absent) {
  return find(key) == nullptr ? absent : integer(key, range);
}

double ConfigFields::number(std::string_view key, NumberRange range) {
  const Json* value = find(key);
  if (value == nullptr) bad(key, "is missing", "a number is needed here");
  if (!value->is_number()) bad(key, fmt::format("expected a number, found {}", value->kind()));
  const double found = value->as_double();
  if (!std::isfinite(found) || found < range.least || found > range.most)
    bad(key, fmt::format("is {}, which is not between {} and {}", found, range.least, range.most));
  return found;
}

double ConfigFields::number(std::string_view key, NumberRange range, double absent) {
  return find(key) == nullptr ? absent : number(key, range);
}

bool ConfigFields::flag(std::string_view key, bool absent) {
  const Json* value = find(key);
  if (value == nullptr) return absent;
  if (!value->is_bool()) bad(key, fmt::format("expected true or false, found {}", value->kind()));
  return value->as_bool();
}

std::string ConfigFields::text(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) bad(key, "is missing", "a string is needed here");
  if (!value->is_string()) bad(key, fmt::format("expected a string, found {}", value->kind()));
  return value->as_string();
}

std::string ConfigFields::text(std::string_view key, std::string_view absent) {
  return find(key) == nullptr ? std::string(absent) : text(key);
}

void ConfigFields::require_neutral(std::string_view key, const Json& neutral) {
  const Json* value = find(key);
  if (value == nullptr || *value == neutral) return;
  if (value->is_number() && neutral.is_number() && value->as_double() == neutral.as_double()) return;
  const std::string only = neutral.is_null() ? "null" : neutral.dump();
  unsupported(
      key, fmt::format("is {}, which changes the mathematics in a way that is not known here", value->dump()),
      fmt::format("only {} is supported", only));
}

void ConfigFields::refuse_unread(const std::set<std::string_view>& harmless) const {
  for (const auto& [key, value] : object_.members()) {
    if (value.is_null() || read_.count(key) != 0 || harmless.count(key) != 0) continue;
    unsupported(key, "this field is not known, and may change the mathematics",
                "remove it if the model does not depend on it");
  }
}

}  // namespace llmq

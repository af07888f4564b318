#include "serve/requests/request_fields.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "base/utf8_sequence.h"
#include "serve/api_error.h"

namespace llmq {
namespace {

constexpr std::size_t kShownName = 64, kShownReason = 256;

// One pass over the text, strings skipped, so that a hostile body costs no memory before it is refused.
void check_structure(std::string_view body, const BodyLimits& limits) {
  int depth = 0;
  std::size_t values = 1;
  bool in_string = false;
  for (std::size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == ']' || c == '}') --depth;
    if (c == '[' || c == '{') {
      if (++depth > limits.max_depth)
        throw ApiError(400, fmt::format("the body is nested deeper than {} levels", limits.max_depth));
      ++values;
    }
    if (c == ',' && ++values > limits.max_values)
      throw ApiError(400, fmt::format("the body has more than {} values", limits.max_values));
  }
}

[[noreturn]] void wrong_type(const std::string& name, const char* expected, const Json& found) {
  refuse_field(name, fmt::format("expected {}, found {}", expected, found.kind()), "invalid_type");
}

}  // namespace

std::string excerpt(std::string_view text, std::size_t limit) {
  std::size_t end = std::min(text.size(), limit);
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0u) == 0x80u) --end;
  return std::string(text.substr(0, end)) + (end < text.size() ? "..." : "");
}

void refuse_field(const std::string& name, const std::string& message, std::string code) {
  throw ApiError(400, fmt::format("'{}': {}", name, message), name, std::move(code));
}

Json parse_body(std::string_view body, const BodyLimits& limits) {
  if (body.size() > limits.max_bytes)
    throw ApiError(
        413, fmt::format("the body has {} bytes, more than the {} allowed", body.size(), limits.max_bytes));
  if (!is_utf8(body)) throw ApiError(400, "the body is not valid UTF-8");
  check_structure(body, limits);
  try {
    return Json::parse(body, "the body", {limits.max_bytes, limits.max_depth});
  } catch (const Error& error) {
    throw ApiError(
        400,
        fmt::format("the body {} ({})", excerpt(error.detail().message, kShownReason), error.detail().where),
        {}, "invalid_json");
  }
}

RequestFields::RequestFields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (object.is_object()) return;
  if (path_.empty()) throw ApiError(400, fmt::format("the body is {}, not an object", object.kind()));
  wrong_type(path_, "an object", object);
}

std::string RequestFields::name(std::string_view key) const {
  return path_.empty() ? excerpt(key, kShownName) : path_ + "." + excerpt(key, kShownName);
}

const Json* RequestFields::take(std::string_view key) {
  known_.push_back(key);
  const Json* value = object_.find(key);
  return value && !value->is_null() ? value : nullptr;
}

std::optional<bool> RequestFields::boolean(std::string_view key) {
  const Json* value = take(key);
  if (!value) return std::nullopt;
  if (!value->is_bool()) wrong_type(name(key), "a boolean", *value);
  return value->as_bool();
}

std::optional<std::int64_t> RequestFields::integer(std::string_view key, std::int64_t low,
                                                   std::int64_t high) {
  const Json* value = take(key);
  if (!value) return std::nullopt;
  if (!value->is_integer()) wrong_type(name(key), "an integer", *value);
  const std::int64_t found = value->as_integer();
  if (found < low || found > high)
    refuse_field(name(key), fmt::format("{} is not between {} and {}", found, low, high),
                 "value_out_of_range");
  return found;
}

std::optional<double> RequestFields::number(std::string_view key, double low, double high) {
  const Json* value = take(key);
  if (!value) return std::nullopt;
  if (!value->is_number()) wrong_type(name(key), "a number", *value);
  const double found = value->as_double();
  if (!(found >= low && found <= high))
    refuse_field(name(key), fmt::format("{} is not between {} and {}", found, low, high),
                 "value_out_of_range");
  return found;
}

std::optional<std::string> RequestFields::string(std::string_view key) {
  const Json* value = take(key);
  if (!value) return std::nullopt;
  if (!value->is_string()) wrong_type(name(key), "a string", *value);
  return value->as_string();
}

const Json::Array* RequestFields::array(std::string_view key) {
  const Json* value = take(key);
  if (value && !value->is_array()) wrong_type(name(key), "an array", *value);
  return value ? &value->items() : nullptr;
}

const Json* RequestFields::object(std::string_view key) {
  const Json* value = take(key);
  if (value && !value->is_object()) wrong_type(name(key), "an object", *value);
  return value;
}

void RequestFields::unsupported(std::string_view key, const Json& harmless) {
  const Json* value = take(key);
  if (value && !(*value == harmless))
    refuse_field(name(key), "is not supported by this server", "unsupported_value");
}

void RequestFields::finish() const {
  for (const Json::Member& member : object_.members())
    if (std::find(known_.begin(), known_.end(), member.first) == known_.end())
      refuse_field(name(member.first), "is not a field of this request", "unknown_parameter");
}

}  // namespace llmq

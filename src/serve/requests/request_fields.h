// The fields of a JSON object in a request, read one by one: wrong types and ranges, and fields that nobody
// asked for, are ApiError 400 with the field's name. A field that is null counts as absent.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace llmq {

// A request body as JSON, its size, depth and number of values checked before any of it is kept.
struct BodyLimits {
  std::size_t max_bytes = 8u << 20;
  int max_depth = 64;
  std::size_t max_values = 1u << 18;  // strings, numbers, lists, ...: each costs 40 bytes or more
};
Json parse_body(std::string_view body, const BodyLimits& limits);

class RequestFields {
 public:
  // `path` is what stands before the names in errors: "tools[0].function".
  explicit RequestFields(const Json& object, std::string path = {});

  const Json* take(std::string_view key);
  std::optional<bool> boolean(std::string_view key);
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t low, std::int64_t high);
  std::optional<double> number(std::string_view key, double low, double high);
  std::optional<std::string> string(std::string_view key);
  const Json::Array* array(std::string_view key);
  const Json* object(std::string_view key);

  // A field of the API that this server does not carry out: anything but null, or `harmless`, is refused.
  void unsupported(std::string_view key, const Json& harmless = Json());
  // Known, and without meaning here.
  void ignore(std::string_view key) { take(key); }
  // Refuses the first field that was not asked for.
  void finish() const;

  std::string name(std::string_view key) const;

 private:
  const Json& object_;
  std::string path_;
  std::vector<std::string_view> known_;
};

// The first bytes of a text from outside, whole characters: what an error repeats of it.
std::string excerpt(std::string_view text, std::size_t limit);

[[noreturn]] void refuse_field(const std::string& name, const std::string& message, std::string code = {});

}  // namespace llmq

// JSON values: strict to read (duplicate keys, depth, size and UTF-8 checked), stable to write (order kept).
//
// Integers that fit int64 stay integers; other numbers are double and print in the shortest form that reads
// back equal. Parsing is nlohmann-json's SAX reader; this header keeps it out of everybody's compile time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace llmq {

struct JsonLimits {
  std::size_t max_bytes = 64u << 20;
  int max_depth = 128;
};

struct JsonField;

class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;  // insertion order

  // What copies, moves and ends a value stands in json.cpp: hundreds of sources do it.
  Json() : value_(nullptr) {}
  ~Json();
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  Json(std::nullptr_t) : value_(nullptr) {}
  Json(bool b) : value_(b) {}
  Json(int i) : value_(std::int64_t{i}) {}
  Json(unsigned u) : value_(std::int64_t{u}) {}
  Json(std::int64_t i) : value_(i) {}
  Json(std::uint64_t u) : value_(nullptr) {
    if (u <= static_cast<std::uint64_t>(INT64_MAX))
      value_ = static_cast<std::int64_t>(u);
    else
      value_ = static_cast<double>(u);
  }
  Json(double d) : value_(d) {}
  Json(const char* s);
  Json(std::string_view s);
  Json(std::string s);
  Json(Array a);
  Json(Object o);
  static Json object(std::initializer_list<JsonField> members = {});
  static Json array(std::initializer_list<Json> items = {});

  // `file` names the source in errors, which name the byte (the first is 1). Errors: kBadInput.
  static Json parse(std::string_view text, const std::string& file, JsonLimits limits = {});
  std::string dump(int indent = -1) const;  // -1: one line; NaN and infinities become null

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const { return std::holds_alternative<std::int64_t>(value_); }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }

  // Typed reads throw Error(kBadInput, "expected a string, found an array") when the kind is another.
  bool as_bool() const;
  std::int64_t as_integer() const;
  double as_double() const;  // integers too
  const std::string& as_string() const;
  const Array& items() const;
  Array& items();
  const Object& members() const;
  Object& members();

  const Json* find(std::string_view key) const;  // null when absent or not an object
  const Json& at(std::string_view key) const;    // Error(kBadInput, "key '...' is missing")
  Json& operator[](std::string_view key);        // of an object (null becomes one): appended when absent
  void push_back(Json item);                     // onto an array (null becomes one)
  bool erase(std::string_view key);
  const char* kind() const;  // "null", "a boolean", "an integer", ...

  bool operator==(const Json& other) const;

 private:
  std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Array, Object> value_;
};

// A member as it is written in Json::object({{"name", value}}).
struct JsonField {
  std::string_view name;
  Json value;
};

Json text_list(std::span<const std::string> texts);

}  // namespace llmq

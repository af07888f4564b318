// A JSON document from outside, such as a manifest or a signature, read value by value: what is missing or of
// another kind is an Error(kBadInput) that names the file.
#pragma once
#include <string>

#include "base/error.h"
#include "base/json.h"

namespace llmq {

inline constexpr const char* kStatementType = "https://in-toto.io/Statement/v1";

class StatementReader {
 public:
  StatementReader(const Json& json, const std::string& file) : json_(json), file_(file) {}
  [[noreturn]] void refuse(const std::string& message, const std::string& where = {}) const {
    fail(ErrorKind::kBadInput, {message, file_, where, {}});
  }
  StatementReader at(const char* key) const {
    const Json* value = json_.find(key);
    if (value == nullptr) refuse(fmt::format("has no '{}'", key), key);
    return {*value, file_};
  }
  StatementReader at(const Json& item) const { return {item, file_}; }  // of a list
  const std::string& text(const char* key) const {
    const Json& value = at(key).json_;
    if (!value.is_string()) refuse(fmt::format("'{}' is not a text", key), key);
    return value.as_string();
  }
  void expect(const char* key, const std::string& wanted) const {
    if (text(key) != wanted) refuse(fmt::format("'{}' where '{}' is understood", text(key), wanted), key);
  }
  const Json::Array& items(const char* key) const {
    const Json& value = at(key).json_;
    if (!value.is_array()) refuse(fmt::format("'{}' is not a list", key), key);
    return value.items();
  }
  // The same, of 64 hexadecimal digits; `where` says whose.
  const std::string& sha256(const char* key, const std::string& where) const {
    const std::string& digest = text(key);
    if (digest.size() != 64 || digest.find_first_not_of("0123456789abcdef") != std::string::npos)
      refuse("holds a digest that is no SHA-256 in hexadecimal digits", where);
    return digest;
  }
  const Json& json() const { return json_; }

 private:
  const Json& json_;
  const std::string& file_;
};

}  // namespace llmq

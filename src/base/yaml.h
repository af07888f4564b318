// Strict YAML: what a recipe may contain, with the line and column of everything.
//
// Built over yaml-cpp's event handler: anchors, aliases, tags, merge keys, a second document, duplicate keys,
// more than 10,000 nodes or 1 MiB are errors. A scalar keeps its text; only plain (unquoted) scalars read as
// numbers or booleans, and only `true` and `false` are booleans, only decimal numbers are numbers (no octal
// 012, no .nan).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llmq {

class Yaml {
 public:
  enum class Kind { kNull, kScalar, kSequence, kMapping };

  // `file` names the source in errors ("recipe.yaml: 3:7: ..."). Errors: kBadInput.
  static Yaml parse(std::string_view text, const std::string& file);

  Kind kind() const { return kind_; }
  int line() const { return line_; }      // from 1
  int column() const { return column_; }  // from 1
  const std::string& file() const { return file_; }

  // Typed reads; a wrong kind fails at this node's line and column, saying what was expected.
  const std::string& as_string() const;
  std::int64_t as_integer() const;
  double as_double() const;
  bool as_bool() const;
  const std::vector<Yaml>& items() const;
  struct Member;
  const std::vector<Member>& members() const;
  const Yaml* find(std::string_view key) const;
  bool is_plain() const { return plain_; }  // a scalar written without quotes

  // Throws Error(kBadInput) at this node: "recipe.yaml: 3:7: <message>; <hint>".
  [[noreturn]] void fail_here(const std::string& message, const std::string& hint = {}) const;

 private:
  friend class YamlBuilder;
  Kind kind_ = Kind::kNull;
  std::string file_, scalar_;
  bool plain_ = false;
  int line_ = 0, column_ = 0;
  std::vector<Yaml> items_;
  std::vector<Member> members_;
};

struct Yaml::Member {
  std::string key;
  int line = 0, column = 0;  // of the key
  Yaml value;
};

}  // namespace llmq

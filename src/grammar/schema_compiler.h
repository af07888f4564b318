// From a JSON schema to the texts that it allows: a rule for each schema that is referred to, and for each
// keyword what it makes of a value's text.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "grammar/json_texts.h"

namespace llmq {

class SchemaCompiler {
 public:
  SchemaCompiler(TextProgramBuilder& builder, const Json& root, std::string where)
      : builder_(builder), texts_(builder), root_(root), where_(std::move(where)) {}

  // Rules are compiled one after another, not inside each other: a long chain of references needs no deep
  // stack.
  TextPlace compile();

 private:
  using Words = std::vector<std::string_view>;
  struct Rule {
    const Json* schema;
    TextPlace place;
    std::set<std::string> begins_with;  // rules that stand at its very start
  };

  static std::string shown_key(const std::string& key);
  [[noreturn]] void refuse(const std::string& where, const std::string& message) const;
  [[noreturn]] void unsupported(const std::string& where, const std::string& message) const;
  void check_keys(const Json& schema, const Words& known, const std::string& where, const char* beside) const;

  std::string place_name(const std::string& reference) const;
  const Json& target(const std::string& reference, const std::string& where) const;
  TextPlace rule_of(const std::string& name, const std::string& where);
  void refuse_circles() const;

  // `front`: at the very start of the rule that is compiled.
  TextPlace value(const Json& schema, const std::string& where, bool front, TextPlace next);
  TextPlace referred(const Json& schema, const Json& reference, const std::string& where, bool front,
                     TextPlace next);
  TextPlace any_of(const Json& schema, const Json& ways, const std::string& key, const std::string& where,
                   bool front, TextPlace next);
  TextPlace one_of(const Json& schema, const Json& ways, const std::string& where, bool front,
                   TextPlace next);
  std::vector<std::string> types_of(const Json& schema, const std::string& where) const;
  TextPlace listed(const Json& schema, const std::string& where, TextPlace next);
  TextPlace typed(const Json& schema, const std::string& where, TextPlace next);
  std::vector<std::string> meant_types(const Json& schema) const;
  TextPlace of_type(const std::string& type, const Json& schema, const std::string& where, TextPlace next);

  std::optional<std::int64_t> count(const Json& schema, const char* key, const std::string& where) const;
  void check_order(std::int64_t least, const std::optional<std::int64_t>& most,
                   const std::string& where) const;

  TextPlace string(const Json& schema, const std::string& where, TextPlace next);
  TextPlace integer(const Json& schema, const std::string& where, TextPlace next);
  TextPlace integer(std::int64_t low, std::int64_t high, TextPlace next);
  TextPlace number(const Json& schema, const std::string& where, TextPlace next);
  TextPlace multiple(const Json& word, std::int64_t low, std::int64_t high, const std::string& where,
                     TextPlace next);
  TextPlace array(const Json& schema, const std::string& where, TextPlace next);
  std::set<std::string> required_of(const Json& schema, const std::string& where) const;
  TextPlace object(const Json& schema, const std::string& where, TextPlace next);
  TextPlace any_members(const Json* others, const std::string& where, TextPlace next);

  TextProgramBuilder& builder_;
  JsonTexts texts_;
  const Json& root_;
  std::string where_;
  std::map<std::string, Rule> rules_;  // by the reference
  std::vector<std::string> waiting_;
  std::string current_;
};

}  // namespace llmq

#include "grammar/schema_overlap.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string_view>

namespace llmq {
namespace {

constexpr int kMostDepth = 32;

using Kinds = std::set<std::string>;
const Kinds kAllKinds = {"object", "array", "string", "number", "boolean", "null"};

std::string kind_of(const Json& value) {
  if (value.is_object()) return "object";
  if (value.is_array()) return "array";
  if (value.is_string()) return "string";
  if (value.is_number()) return "number";
  return value.is_bool() ? "boolean" : "null";
}

// 1 and 1.0 are one value; lists and objects are not looked into.
bool may_equal(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return a.as_double() == b.as_double();
  if ((a.is_array() && b.is_array()) || (a.is_object() && b.is_object())) return true;
  return a == b;
}

bool share(const Kinds& a, const Kinds& b) {
  return std::any_of(a.begin(), a.end(), [&](const std::string& kind) { return b.count(kind) != 0; });
}

class Overlap {
 public:
  Overlap(const SchemaTarget& target, const std::function<void()>& charge)
      : target_(target), charge_(charge) {}

  bool may(const Json& first, const Json& second, int depth) {
    charge_();
    if (depth > kMostDepth) return true;
    const Json &a = meant(first), &b = meant(second);
    if (!a.is_object() || !b.is_object()) return true;
    for (const char* key : {"anyOf", "oneOf"}) {
      if (const Json* ways = a.find(key); ways && ways->is_array()) return any(*ways, b, depth);
      if (const Json* ways = b.find(key); ways && ways->is_array()) return any(*ways, a, depth);
    }
    const Kinds kinds_a = kinds(a), kinds_b = kinds(b);
    if (!share(kinds_a, kinds_b)) return false;
    const std::span<const Json> values_a = values(a), values_b = values(b);
    if (!values_a.empty() && !values_b.empty()) return share_a_value(values_a, values_b);
    return !only_objects_are_shared(kinds_a, kinds_b) || !told_apart(a, b, depth);
  }

 private:
  const Json& meant(const Json& schema) const {
    const Json* at = &schema;
    for (int i = 0; i < kMostDepth && at->is_object() && at->find("$ref") && at->at("$ref").is_string(); ++i)
      at = &target_(at->at("$ref").as_string());
    return *at;
  }
  bool any(const Json& ways, const Json& other, int depth) {
    return std::any_of(ways.items().begin(), ways.items().end(),
                       [&](const Json& way) { return may(way, other, depth + 1); });
  }
  static std::span<const Json> values(const Json& schema) {
    if (const Json* list = schema.find("enum"); list && list->is_array()) return list->items();
    if (const Json* one = schema.find("const")) return {one, 1};
    return {};
  }
  bool share_a_value(std::span<const Json> a, std::span<const Json> b) const {
    for (const Json& x : a)
      for (const Json& y : b) {
        charge_();
        if (may_equal(x, y)) return true;
      }
    return false;
  }
  Kinds kinds(const Json& schema) const {
    Kinds found;
    for (const Json& value : values(schema)) {
      charge_();
      found.insert(kind_of(value));
    }
    if (!found.empty()) return found;
    const Json* type = schema.find("type");
    const auto add = [&](const Json& one) {
      if (one.is_string()) found.insert(one.as_string() == "integer" ? "number" : one.as_string());
    };
    if (type && type->is_array())
      std::for_each(type->items().begin(), type->items().end(), add);
    else if (type)
      add(*type);
    return found.empty() ? kAllKinds : found;
  }
  static bool only_objects_are_shared(const Kinds& a, const Kinds& b) {
    return std::none_of(a.begin(), a.end(),
                        [&](const std::string& kind) { return kind != "object" && b.count(kind) != 0; });
  }
  // To look at a name costs little beside a step.
  void look_at(std::size_t names) {
    constexpr std::size_t kNamesOfAStep = 32;
    for (looked_at_ += names; looked_at_ >= kNamesOfAStep; looked_at_ -= kNamesOfAStep) charge_();
  }
  void add_required(const Json& schema, std::set<std::string_view>& names) {
    const Json* required = schema.find("required");
    if (!required || !required->is_array()) return;
    look_at(required->items().size());
    for (const Json& name : required->items())
      if (name.is_string()) names.insert(name.as_string());
  }
  // A member that either of them requires, and that both describe in ways that exclude each other.
  bool told_apart(const Json& a, const Json& b, int depth) {
    const Json *of_a = a.find("properties"), *of_b = b.find("properties");
    if (!of_a || !of_b || !of_a->is_object() || !of_b->is_object()) return false;
    std::set<std::string_view> required;
    add_required(a, required);
    add_required(b, required);
    std::map<std::string_view, const Json*> others;
    look_at(of_a->members().size() + of_b->members().size());
    for (const Json::Member& member : of_b->members()) others.emplace(member.first, &member.second);
    for (const Json::Member& member : of_a->members()) {
      const auto other = others.find(member.first);
      if (other != others.end() && required.count(member.first) != 0 &&
          !may(member.second, *other->second, depth + 1))
        return true;
    }
    return false;
  }

  const SchemaTarget& target_;
  const std::function<void()>& charge_;
  std::size_t looked_at_ = 0;  // names that are not charged yet
};

}  // namespace

bool may_overlap(const Json& a, const Json& b, const SchemaTarget& target,
                 const std::function<void()>& charge) {
  return Overlap(target, charge).may(a, b, 0);
}

}  // namespace llmq

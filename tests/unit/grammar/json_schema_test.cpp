// JSON schemas: texts drawn at random from a network are read back by the JSON reader and judged by a
// validator of its own; what is not supported is refused by name; hostile schemas meet the budgets.
#include <gtest/gtest.h>
#include <re2/re2.h>

#include <random>

#include "base/error.h"
#include "base/utf8_sequence.h"
#include "grammar/json_schema.h"
#include "grammar/json_texts.h"
#include "tests/unit/grammar/walked_automaton.h"

namespace llmq::testing {
namespace {

TextAutomaton schema_automaton(const Json& schema) {
  TextProgramBuilder builder("schema");
  const TextPlace start = schema_texts(builder, schema, "schema");
  return TextAutomaton(std::make_shared<const TextProgram>(std::move(builder).finish(start, all_bytes())));
}
TextAutomaton schema_automaton(const char* schema) { return schema_automaton(Json::parse(schema, "schema")); }

// A text of random bytes that may follow; after a while, of those that lead to the end.
std::string drawn(TextAutomaton& automaton, std::mt19937& random) {
  std::string text;
  TextAutomaton::State state = automaton.start();
  while (!automaton.complete(state)) {
    if (automaton.accepts(state) && random() % 4 == 0) break;
    automaton.renew();
    std::string ways;
    for (int byte = 0; byte < 256; ++byte)
      if (automaton.step(state, static_cast<std::uint8_t>(byte)) != TextAutomaton::kDead)
        ways += static_cast<char>(byte);
    if (ways.empty()) {
      ADD_FAILURE() << "nothing may follow '" << text << "'";
      break;
    }
    char byte = ways[random() % ways.size()];
    // q: inside a string
    if (text.size() > 40 || random() % 2 == 0)
      for (const char closing : std::string(ways.find('q') != std::string::npos ? "\"" : "n0\":]}"))
        if (ways.find(closing) != std::string::npos) byte = closing;
    text += byte;
    state = automaton.step(state, static_cast<std::uint8_t>(byte));
    if (automaton.states() > 60) state = automaton.restart(state);
    if (text.size() > 4000) {
      ADD_FAILURE() << "no end: " << text.substr(0, 200);
      break;
    }
  }
  return text;
}

std::int64_t characters(const std::string& text) {
  std::int64_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xc0u) != 0x80u;
  return count;
}

// Whether a value is what a schema says: the definitions of the keywords, one after another.
class Validator {
 public:
  explicit Validator(const Json& root) : root_(root) {}
  bool valid(const Json& value, const Json& schema) const {
    if (schema.is_bool()) return schema.as_bool();
    for (const Json::Member& keyword : schema.members())
      if (!holds(keyword.first, keyword.second, value, schema)) return false;
    return true;
  }

 private:
  static bool is(const Json& value, const std::string& type) {
    return (type == "object" && value.is_object()) || (type == "array" && value.is_array()) ||
           (type == "string" && value.is_string()) || (type == "integer" && value.is_integer()) ||
           (type == "number" && value.is_number()) || (type == "boolean" && value.is_bool()) ||
           (type == "null" && value.is_null());
  }
  bool holds(const std::string& key, const Json& word, const Json& value, const Json& schema) const {
    const auto any = [&](const Json::Array& list, const auto& test) {
      return std::any_of(list.begin(), list.end(), test);
    };
    const auto all = [&](const Json::Array& list, const auto& test) {
      return std::all_of(list.begin(), list.end(), test);
    };
    if (key == "$ref")
      return valid(value, word.as_string() == "#" ? root_ : root_.at("$defs").at(word.as_string().substr(8)));
    if (key == "type")
      return word.is_string()
                 ? is(value, word.as_string())
                 : any(word.items(), [&](const Json& one) { return is(value, one.as_string()); });
    if (key == "enum") return any(word.items(), [&](const Json& one) { return one == value; });
    if (key == "const") return word == value;
    if (key == "anyOf") return any(word.items(), [&](const Json& one) { return valid(value, one); });
    if (key == "oneOf")
      return std::count_if(word.items().begin(), word.items().end(),
                           [&](const Json& one) { return valid(value, one); }) == 1;
    if (key == "allOf") return all(word.items(), [&](const Json& one) { return valid(value, one); });
    if (value.is_object() && key == "required")
      return all(word.items(), [&](const Json& name) { return value.find(name.as_string()) != nullptr; });
    if (value.is_object() && key == "properties") {
      for (const Json::Member& member : word.members())
        if (const Json* found = value.find(member.first); found && !valid(*found, member.second))
          return false;
    }
    if (value.is_object() && key == "additionalProperties") {
      for (const Json::Member& member : value.members())
        if (!(schema.find("properties") && schema.at("properties").find(member.first)) &&
            !valid(member.second, word))
          return false;
    }
    if (value.is_array() && key == "items") {
      const auto from = static_cast<std::ptrdiff_t>(
          schema.find("prefixItems") ? schema.at("prefixItems").items().size() : 0);
      const auto& list = value.items();
      return from >= std::ssize(list) ||
             std::all_of(list.begin() + from, list.end(), [&](const Json& one) { return valid(one, word); });
    }
    if (value.is_array() && key == "prefixItems") {
      for (std::size_t i = 0; i < std::min(word.items().size(), value.items().size()); ++i)
        if (!valid(value.items()[i], word.items()[i])) return false;
    }
    if (value.is_integer() && key == "multipleOf") return value.as_integer() % word.as_integer() == 0;
    if (value.is_array() && key == "minItems")
      return static_cast<std::int64_t>(value.items().size()) >= word.as_integer();
    if (value.is_array() && key == "maxItems")
      return static_cast<std::int64_t>(value.items().size()) <= word.as_integer();
    if (value.is_string() && key == "minLength") return characters(value.as_string()) >= word.as_integer();
    if (value.is_string() && key == "maxLength") return characters(value.as_string()) <= word.as_integer();
    if (value.is_string() && key == "pattern") return RE2::PartialMatch(value.as_string(), word.as_string());
    if (value.is_number() && key == "minimum") return value.as_double() >= word.as_double();
    if (value.is_number() && key == "maximum") return value.as_double() <= word.as_double();
    if (value.is_number() && key == "exclusiveMinimum") return value.as_double() > word.as_double();
    if (value.is_number() && key == "exclusiveMaximum") return value.as_double() < word.as_double();
    return true;
  }
  const Json& root_;
};

const char* const kSchemas[] = {
    R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150}}, "required": ["name", "age"]})",
    R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "boolean"}, "c": {"type": "number"}, "d": {"enum": ["x\"y", 1, null, [2]]}}, "required": ["c"], "additionalProperties": false})",
    R"({"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 3}, "minItems": 1, "maxItems": 3})",
    R"({"type": "array", "items": {"type": "integer", "exclusiveMinimum": -120, "exclusiveMaximum": 1005}, "minItems": 2})",
    R"({"type": "array", "maxItems": 0})",
    R"({"type": ["string", "null", "integer"], "maxLength": 2, "minimum": 995})",
    R"({"type": "string", "pattern": "^[a-f\"\\\\]{3}x?$"})",
    R"({"type": "string", "pattern": "^é[^\\d]"})",
    R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"value": {"const": {"k": [true]}}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["value", "next"]}}})",
    R"({"anyOf": [{"type": "object", "additionalProperties": {"type": "array", "items": {"$ref": "#"}}}, {"allOf": [{"type": "integer", "maximum": -3}]}]})",
    R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string", "maxLength": 3}], "items": {"type": "null"}, "maxItems": 5})",
    R"({"prefixItems": [{"const": 1}, {"const": 2}, {"const": 3}], "items": false, "minItems": 2})",
    R"({"prefixItems": [{"type": "boolean"}], "minItems": 3, "items": {"type": "integer", "minimum": 7}})",
    R"({"type": "array", "items": {"type": "integer", "multipleOf": 7}, "minItems": 2})",
    R"({"type": "array", "items": {"type": "integer", "multipleOf": 97, "minimum": 0}, "minItems": 1})",
    R"({"type": "array", "items": {"type": "integer", "multipleOf": 25, "minimum": -110, "exclusiveMaximum": 1000}, "minItems": 2})",
    R"({"oneOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#"}}, {"enum": [1, null]}, {"const": 2}]})",
    R"({"type": "array", "items": {"discriminator": {"propertyName": "kind"}, "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}]}, "minItems": 1, "$defs": {
        "cat": {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}, "required": ["kind"]},
        "dog": {"type": "object", "properties": {"kind": {"enum": ["dog", "hound"]}, "lives": {"type": "integer"}}, "required": ["kind"]}}})",
    R"({"type": "array", "items": {"type": "number", "minimum": -0.25, "exclusiveMaximum": 103.5}, "minItems": 2})",
    R"({"type": "array", "items": {"type": "number", "exclusiveMinimum": 999.999, "maximum": 1000.001}, "minItems": 2})",
    R"({"type": "array", "items": {"type": "number", "exclusiveMaximum": -7}, "minItems": 2})",
    R"({"type": "object"})",
    R"({"items": true})",
    R"(true)",
};

TEST(JsonSchema, WhatIsDrawnIsValid) {
  std::mt19937 random(11);
  for (const char* text : kSchemas) {
    const Json schema = Json::parse(text, "schema");
    TextAutomaton automaton = schema_automaton(schema);
    int valid = 0;
    for (int i = 0; i < 100; ++i) {
      const std::string value = drawn(automaton, random);
      try {
        ASSERT_TRUE(Validator(schema).valid(Json::parse(value, "value"), schema)) << text << "\n" << value;
        ++valid;
      } catch (const Error& error) {
        // Names of an object that may have any are not kept apart.
        ASSERT_NE(error.detail().message.find("twice"), std::string::npos) << text << "\n"
                                                                           << value << "\n"
                                                                           << error.what();
      }
    }
    EXPECT_GT(valid, 60) << text;
  }
}

TEST(JsonSchema, AcceptsWhatItShould) {
  const struct {
    const char *schema, *text;
    bool accepted;
  } cases[] = {
      {kSchemas[0], R"({"name":"Ann","age":7})", true},
      {kSchemas[0], "{\n  \"name\": \"\\u00e9\\n\",\n  \"age\": 150\n}", true},
      {kSchemas[0], R"({"name":"Ann","age":151})", false},
      {kSchemas[0], R"({"name":"Ann","age":07})", false},
      {kSchemas[0], R"({"name":"Ann"})", false},
      {kSchemas[0], "{\"name\":\"a\nb\",\"age\":1}", false},
      {kSchemas[0], R"({"name":"\ud800","age":1})", false},
      {kSchemas[1], R"({"a":null, "c":-1.5e+10, "d":[2]})", true},
      {kSchemas[1], R"({"c":0})", true},
      {kSchemas[1], R"({,"c":0})", false},
      {kSchemas[1], R"({"c":0,})", false},
      {kSchemas[1], R"({"a":null})", false},
      {kSchemas[1], R"({"c":0,"e":1})", false},
      {kSchemas[3], "[-119,1004]", true},
      {kSchemas[3], "[-120,0]", false},
      {kSchemas[3], "[0,1005]", false},
      {kSchemas[4], "[]", true},
      {kSchemas[8], R"({"value":{"k":[true]},"next":{"value":{"k":[true]},"next":null}})", true},
      {R"({"items": true})", R"([1, "a", {"b": [[]]}, null])", true},
      {R"({"prefixItems": [{"type": "integer"}, {"type": "string"}]})", "[]", true},
      {R"({"prefixItems": [{"type": "integer"}, {"type": "string"}]})", R"([1, "a", null, {}])", true},
      {R"({"prefixItems": [{"type": "integer"}, {"type": "string"}]})", R"(["a"])", false},
      {R"({"prefixItems": [{"type": "integer"}], "items": false})", "[1]", true},
      {R"({"prefixItems": [{"type": "integer"}], "items": false})", "[1, 2]", false},
      {R"({"type": "integer", "multipleOf": 7})", "-999999999999994", true},
      {R"({"type": "integer", "multipleOf": 7})", "0", true},
      {R"({"type": "integer", "multipleOf": 7})", "-0", false},
      {R"({"type": "integer", "multipleOf": 7})", "07", false},
      {R"({"type": "integer", "multipleOf": 7})", "48", false},
      {R"({"type": "integer", "multipleOf": 100, "minimum": 0})", "7300", true},
      {R"({"type": "integer", "multipleOf": 100, "minimum": 0})", "-7300", false},
      {R"({"type": "integer", "multipleOf": 100000, "minimum": 250000, "maximum": 900000})", "300000", true},
      {R"({"type": "integer", "multipleOf": 100000, "minimum": 250000, "maximum": 900000})", "200000", false},
      {R"({"type": "number", "minimum": 0, "maximum": 1})", "0", true},
      {R"({"type": "number", "minimum": 0, "maximum": 1})", "1.000", true},
      {R"({"type": "number", "minimum": 0, "maximum": 1})", "0.95", true},
      {R"({"type": "number", "minimum": 0, "maximum": 1})", "1.01", false},
      {R"({"type": "number", "minimum": 0, "maximum": 1})", "-0.1", false},
      {R"({"type": "number", "minimum": 0, "maximum": 1})", "-0", false},
      {R"({"type": "number", "minimum": 0, "maximum": 1})", "00.5", false},
      {R"({"type": "number", "minimum": 0, "maximum": 1})", "0.", false},
      {R"({"type": "number", "minimum": 0, "maximum": 1})", "1e-1", false},
      {R"({"type": "number", "exclusiveMinimum": 0})", "0.00", false},
      {R"({"type": "number", "exclusiveMinimum": 0})", "0.00000000000001", true},
      {R"({"type": "number", "exclusiveMinimum": 0})", "99999999999999.9", true},
      {R"({"type": "number", "exclusiveMinimum": 0})", "99999999999999.99", false},
      {R"({"type": "number", "exclusiveMinimum": -2.5, "exclusiveMaximum": 12.75})", "-2.5", false},
      {R"({"type": "number", "exclusiveMinimum": -2.5, "exclusiveMaximum": 12.75})", "-2.4999", true},
      {R"({"type": "number", "exclusiveMinimum": -2.5, "exclusiveMaximum": 12.75})", "12.7499", true},
      {R"({"type": "number", "exclusiveMinimum": -2.5, "exclusiveMaximum": 12.75})", "12.75", false},
      {R"({"type": "number", "exclusiveMinimum": -2.5, "exclusiveMaximum": 12.75})", "12.8", false},
      {R"({"type": "number", "exclusiveMinimum": -2.5, "exclusiveMaximum": 12.75})", "9.9", true},
      {R"({"type": "number", "minimum": 3, "exclusiveMinimum": 3})", "3.0", false},
      {R"({"type": "number", "maximum": -17.25})", "-17.2", false},
      {R"({"type": "number", "maximum": -17.25})", "-17.25", true},
      {R"({"type": "number", "maximum": -17.25})", "-118", true},
      {R"({"oneOf": [{"type": "integer"}, {"type": "null"}]})", "null", true},
      {R"({"type": "string", "format": "date"})", "\"2024-02-28\"", true},
      {R"({"type": "string", "format": "date"})", "\"2024-13-01\"", false},
      {R"({"type": "string", "format": "ipv4"})", "\"255.0.19.1\"", true},
      {R"({"type": "string", "format": "ipv4"})", "\"256.0.19.1\"", false},
      {R"({"type": "string", "format": "uuid"})", "\"123e4567-e89b-12d3-a456-426614174000\"", true},
      {R"({"type": "string", "format": "date-time"})", "\"2024-02-28T23:59:59.5+01:00\"", true},
  };
  for (const auto& one : cases) {
    TextAutomaton automaton = schema_automaton(one.schema);
    EXPECT_EQ(accepts(automaton, one.text), one.accepted) << one.schema << "\n" << one.text;
  }
}

TEST(JsonSchema, RefusesByNameAndPlace) {
  const struct {
    const char *schema, *where;
  } cases[] = {
      {R"({"properties": {"a": {"type": "number", "multipleOf": 2}}})", "schema.properties.a.multipleOf"},
      {R"({"type": "number", "minimum": 0.1234567890123456})", "schema.minimum"},
      {R"({"type": "number", "maximum": 1e300})", "schema.maximum"},
      {R"({"type": "number", "minimum": "2"})", "schema.minimum"},
      {R"({"type": "array", "uniqueItems": true})", "schema.uniqueItems"},
      {R"({"oneOf": []})", "schema.oneOf"},
      {R"({"oneOf": [{"type": "null"}, {"type": "integer"}, {"type": "number"}]})", "schema.oneOf"},
      {R"({"oneOf": [{"enum": ["a", 1]}, {"const": 1.0}]})", "schema.oneOf"},
      {R"({"oneOf": [{"const": [1]}, {"const": [2]}]})", "schema.oneOf"},
      {R"({"oneOf": [{"type": "object", "properties": {"k": {"const": 1}}}, {"type": "object", "properties": {"k": {"const": 2}}}]})",
       "schema.oneOf"},
      {R"({"oneOf": [{"properties": {"k": {"const": 1}}, "required": ["k"]}, {"properties": {"k": {"const": 2}}, "required": ["k"]}]})",
       "schema.oneOf"},
      {R"({"oneOf": [{"type": "null"}, {"$ref": "#/$defs/x"}], "$defs": {"x": {"type": ["null", "string"]}}})",
       "schema.oneOf"},
      {R"({"oneOf": [{"type": "null"}], "type": "null"})", "schema.type"},
      {R"({"anyOf": [{"type": "null"}], "discriminator": {}})", "schema.discriminator"},
      {R"({"prefixItems": []})", "schema.prefixItems"},
      {R"({"prefixItems": [true], "items": false, "minItems": 2})", "schema"},
      {R"({"items": false})", "schema.items"},
      {R"({"type": "integer", "multipleOf": 0.5})", "schema.multipleOf"},
      {R"({"type": "integer", "multipleOf": 101})", "schema.multipleOf"},
      {R"({"type": "integer", "multipleOf": 2, "maximum": 5})", "schema.multipleOf"},
      {R"({"type": "integer", "multipleOf": 10, "minimum": 11, "maximum": 19})", "schema"},
      {R"({"not": {}})", "schema.not"},
      {R"({"type": "string", "minLength": 1, "pattern": "a"})", "schema.pattern"},
      {R"({"type": "string", "format": "color"})", "schema.format"},
      {R"({"type": "string", "pattern": "[z-a]"})", "schema.pattern"},
      {R"({"type": "object", "minLength": 1})", "schema.minLength"},
      {R"({"type": "thing"})", "schema.type"},
      {R"({"anyOf": []})", "schema.anyOf"},
      {R"({"anyOf": [{"type": "null"}, {"if": {}}]})", "schema.anyOf.1.if"},
      {R"({"allOf": [{}, {}]})", "schema.allOf"},
      {R"({"$ref": "http://example.org/x"})", "schema.$ref"},
      {R"({"$ref": "#/$defs/x"})", "schema.$ref"},
      {R"({"$ref": "#/$defs/x", "type": "null", "$defs": {"x": {}}})", "schema.type"},
      {R"({"$defs": {"x": {"patternProperties": {}}}, "items": {"$ref": "#/$defs/x"}})",
       "schema.$defs.x.patternProperties"},
      {R"({"enum": [1], "type": "string"})", "schema.enum"},
      {R"({"required": ["a"]})", "schema.required"},
      {R"({"properties": {"a": true}, "additionalProperties": {"type": "null"}})",
       "schema.additionalProperties"},
      {R"({"minItems": -1})", "schema.minItems"},
      {R"({"minItems": 3, "maxItems": 2})", "schema"},
      {R"({"type": "integer", "minimum": 3, "maximum": 2})", "schema"},
      {R"({"type": "number", "minimum": 2.5, "maximum": 2.4})", "schema"},
      {R"({"type": "number", "exclusiveMinimum": -1, "maximum": -1})", "schema"},
      {R"({"type": "number", "exclusiveMinimum": 0.99999999999998, "exclusiveMaximum": 0.99999999999999})",
       "schema"},
      {R"({"type": "integer", "minimum": 0.5})", "schema.minimum"},
      {R"({"properties": {"a": {"$id": "x"}}})", "schema.properties.a.$id"},
      {R"([])", "schema"},
      // Itself without anything before it, at once and by a detour; and what has no finite value.
      {R"({"$ref": "#"})", "schema"},
      {R"({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/x"}], "$defs": {"x": {"anyOf": [{"$ref": "#"}, {"items": {"$ref": "#"}}]}}})",
       "schema"},
      {R"({"properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "schema"},
  };
  for (const auto& one : cases) try {
      schema_automaton(one.schema);
      ADD_FAILURE() << one.schema;
    } catch (const Error& error) {
      EXPECT_EQ(error.detail().where, one.where) << one.schema << ": " << error.detail().message;
      EXPECT_EQ(exit_code(error.kind()), 2);
    }
}

TEST(JsonSchema, BombsMeetBudgets) {
  EXPECT_THROW(
      schema_automaton(
          R"({"minItems": 10000, "items": {"minItems": 10000, "items": {"minItems": 10000, "items": {"enum": ["0123456789012345"]}}}})"),
      Error);
  std::string chain = R"({"$ref": "#/$defs/0", "$defs": {)";
  for (int i = 0; i < 5000; ++i) chain += fmt::format(R"("{}": {{"$ref": "#/$defs/{}"}}, )", i, i + 1);
  EXPECT_NO_THROW(schema_automaton((chain + R"("5000": {"type": "null"}}})").c_str()))
      << "no reference is inside another";
  // Twice as many ways at every level.
  TextAutomaton ways = schema_automaton(
      R"({"anyOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}, "minItems": 1}, {"type": "null"}]})");
  TextAutomaton::State state = ways.start();
  EXPECT_THROW(
      for (int i = 0; i < 60; ++i) {
        ways.renew();
        state = ways.step(state, '[');
      },
      Error);
  // Lists in lists end where no deeper one could be finished.
  TextAutomaton any = schema_automaton("true");
  state = any.start();
  int depth = 0;
  for (TextAutomaton::State next; any.renew(), (next = any.step(state, '[')) != TextAutomaton::kDead;
       state = next)
    ++depth;
  EXPECT_NEAR(depth, TextProgram::kMostLevels, 3);
  for (; depth > 0; --depth) state = any.step(state, ']');
  EXPECT_TRUE(any.complete(state));
}

}  // namespace
}  // namespace llmq::testing

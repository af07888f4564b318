#include "serve/requests/constraint_fields.h"

#include <fmt/core.h>

#include "base/error.h"

namespace llmq {
namespace {

constexpr int kSchemaDepth = 64;

std::optional<ConstraintSpec> read_response_format(RequestFields& fields) {
  const Json* format = fields.object("response_format");
  if (!format) return std::nullopt;
  RequestFields inner(*format, "response_format");
  const std::string type = inner.string("type").value_or("");
  std::optional<ConstraintSpec> constraint;
  if (type == "json_schema") {
    const Json* named = inner.object("json_schema");
    if (!named) refuse_field(inner.name("json_schema"), "is missing", "missing_required_parameter");
    RequestFields schema(*named, inner.name("json_schema"));
    schema.string("name");
    schema.string("description");
    schema.boolean("strict");  // schemas are always kept to
    const Json* body = schema.object("schema");
    if (!body) refuse_field(schema.name("schema"), "is missing", "missing_required_parameter");
    schema.finish();
    constraint = ConstraintSpec{JsonSchemaText{*body}, schema.name("schema")};
  } else if (type == "json_object") {
    constraint = ConstraintSpec{JsonObjectText{}, "response_format"};
  } else if (type != "text") {
    refuse_field(inner.name("type"), "is one of text, json_object, json_schema", "unsupported_value");
  }
  inner.finish();
  return constraint;
}

OneOfTexts read_choice(const Json::Array& list, const std::string& name) {
  OneOfTexts choice;
  for (const Json& text : list) {
    if (!text.is_string())
      refuse_field(name, fmt::format("expected strings, found {}", text.kind()), "invalid_type");
    choice.texts.push_back(text.as_string());
  }
  return choice;
}

// A schema, or the text of one.
JsonSchemaText read_schema(const Json& schema, const std::string& name) {
  if (!schema.is_string()) return {schema};
  try {
    return {Json::parse(schema.as_string(), name, {1u << 20, kSchemaDepth})};
  } catch (const Error& error) {
    refuse_field(name, excerpt(error.detail().message, 256), "invalid_json");
  }
}

std::optional<ConstraintSpec> read_structured_outputs(RequestFields& fields) {
  const Json* outputs = fields.object("structured_outputs");
  if (!outputs) return std::nullopt;
  RequestFields inner(*outputs, "structured_outputs");
  std::vector<ConstraintSpec> found;
  if (const Json* schema = inner.take("json"))
    found.push_back({read_schema(*schema, inner.name("json")), inner.name("json")});
  if (auto pattern = inner.string("regex"))
    found.push_back({RegexText{std::move(*pattern)}, inner.name("regex")});
  if (const Json::Array* list = inner.array("choice"))
    found.push_back({read_choice(*list, inner.name("choice")), inner.name("choice")});
  if (inner.boolean("json_object").value_or(false))
    found.push_back({JsonObjectText{}, inner.name("json_object")});
  for (const char* key : {"grammar", "structural_tag"}) inner.unsupported(key);
  inner.finish();
  if (found.size() != 1)
    refuse_field("structured_outputs", "needs exactly one of json, regex, choice, json_object");
  return found[0];
}

}  // namespace

std::optional<ConstraintSpec> read_constraint(RequestFields& fields) {
  std::optional<ConstraintSpec> format = read_response_format(fields),
                                outputs = read_structured_outputs(fields);
  if (format && outputs)
    refuse_field("structured_outputs", "is given beside 'response_format'; give one of them");
  return format ? std::move(format) : std::move(outputs);
}

}  // namespace llmq

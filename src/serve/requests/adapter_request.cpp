// Bodies of /v1/load_lora_adapter and /v1/unload_lora_adapter.
#include "serve/requests/completion_request.h"

namespace llmq {
namespace {

std::string required(RequestFields& fields, const char* name) {
  const auto value = fields.string(name);
  if (!value) refuse_field(name, "is missing", "missing_required_parameter");
  return *value;
}

}  // namespace

AdapterRequest parse_load_adapter_request(std::string_view body, const RequestLimits& limits) {
  const Json json = parse_body(body, limits.body);
  RequestFields fields(json);
  AdapterRequest request{required(fields, "lora_name"), required(fields, "lora_path"),
                         fields.boolean("load_inplace").value_or(false)};
  fields.finish();
  return request;
}

std::string parse_unload_adapter_request(std::string_view body, const RequestLimits& limits) {
  const Json json = parse_body(body, limits.body);
  RequestFields fields(json);
  std::string name = required(fields, "lora_name");
  fields.ignore("lora_int_id");
  fields.finish();
  return name;
}

}  // namespace llmq

// The body of /v1/chat/completions.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "serve/requests/answer_options.h"
#include "serve/requests/chat_fields.h"
#include "serve/requests/completion_request.h"
#include "tokenizer/chat_template.h"

namespace llmq {
namespace {

constexpr std::size_t kTools = 128;

// A string, or text parts, which templates see as one string.
std::string text_of(const Json& content, const std::string& name) {
  if (content.is_string()) return content.as_string();
  if (!content.is_array())
    refuse_field(name, fmt::format("expected a string or a list of parts, found {}", content.kind()),
                 "invalid_type");
  std::string text;
  for (std::size_t i = 0; i < content.items().size(); ++i) {
    RequestFields part(content.items()[i], fmt::format("{}[{}]", name, i));
    const std::string type = part.string("type").value_or("");
    if (type.starts_with("image") || type.starts_with("video") || type == "input_image" ||
        type == "input_audio")
      refuse_field(part.name("type"),
                   "this server evaluates text alone, whatever the model could see or hear: send parts of "
                   "type 'text'",
                   "unsupported_value");
    if (type != "text")
      refuse_field(part.name("type"), "only parts of type 'text' are supported by this server",
                   "unsupported_value");
    const auto piece = part.string("text");
    if (!piece) refuse_field(part.name("text"), "is missing", "missing_required_parameter");
    part.finish();
    text += *piece;
  }
  return text;
}

// {"id", "type": "function", "function": {"name", "arguments": "{...}"}}: the arguments become what their
// text says.
Json shown_call(const Json& call, const std::string& name) {
  RequestFields fields(call, name);
  Json shown = Json::object();
  if (const auto id = fields.string("id")) shown["id"] = *id;
  shown["type"] = fields.string("type").value_or("function");
  const Json* function = fields.object("function");
  if (!function) refuse_field(fields.name("function"), "is missing", "missing_required_parameter");
  RequestFields inner(*function, fields.name("function"));
  const auto called = inner.string("name");
  const auto arguments = inner.string("arguments");
  if (!called) refuse_field(inner.name("name"), "is missing", "missing_required_parameter");
  Json parsed = Json::object();
  try {
    if (arguments && !arguments->empty()) parsed = Json::parse(*arguments, "arguments", {1u << 20, 64});
  } catch (const Error& error) {
    refuse_field(inner.name("arguments"), excerpt(error.detail().message, 256));
  }
  inner.finish();
  fields.ignore("index");
  fields.finish();
  shown["function"] = Json::object({{"name", *called}, {"arguments", std::move(parsed)}});
  return shown;
}

Json shown_message(const Json& message, const std::string& name) {
  RequestFields fields(message, name);
  const std::string role = fields.string("role").value_or("");
  if (std::find(kChatRoles.begin(), kChatRoles.end(), role) == kChatRoles.end())
    refuse_field(fields.name("role"), fmt::format("is one of {}", fmt::join(kChatRoles, ", ")));
  Json shown = Json::object({{"role", role == "developer" ? "system" : role}});
  if (const Json* content = fields.take("content"))
    shown["content"] = text_of(*content, fields.name("content"));
  if (const Json::Array* calls = fields.array("tool_calls"); calls && !calls->empty()) {
    Json list = Json::array();
    for (std::size_t i = 0; i < calls->size(); ++i)
      list.push_back(shown_call((*calls)[i], fmt::format("{}.tool_calls[{}]", name, i)));
    shown["tool_calls"] = std::move(list);
  }
  for (const char* key : {"name", "tool_call_id", "reasoning_content"})
    if (const auto text = fields.string(key)) shown[key] = *text;
  // parts of answers that clients send back
  for (const char* key : {"refusal", "annotations"}) fields.ignore(key);
  fields.unsupported("audio");
  fields.unsupported("function_call");
  fields.finish();
  if (!shown.find("content") && !shown.find("tool_calls"))
    refuse_field(fields.name("content"), "is missing", "missing_required_parameter");
  return shown;
}

// {"type": "function", "function": {"name": ...}}: the name.
std::string named_choice(const Json& choice) {
  RequestFields fields(choice, "tool_choice");
  if (fields.string("type").value_or("") != "function")
    refuse_field(fields.name("type"), "only 'function' is supported by this server", "unsupported_value");
  const Json* function = fields.object("function");
  if (!function) refuse_field(fields.name("function"), "is missing", "missing_required_parameter");
  RequestFields inner(*function, fields.name("function"));
  auto name = inner.string("name");
  if (!name) refuse_field(inner.name("name"), "is missing", "missing_required_parameter");
  inner.finish();
  fields.finish();
  return *name;
}

// What the arguments of a forced call may be: always an object.
Json arguments_schema(const Json& parameters, const std::string& name) {
  if (parameters.is_null()) return Json::object({{"type", "object"}, {"additionalProperties", false}});
  Json schema = parameters;
  if (const Json* type = schema.find("type"); type && *type != Json("object"))
    refuse_field(name + ".type", "arguments are an object: expected 'object'");
  for (const char* key : {"$ref", "anyOf", "oneOf", "allOf", "enum", "const"})
    if (schema.find(key))
      refuse_field(name + "." + key, "is not supported at the top of the parameters of a call that is forced",
                   "unsupported_value");
  schema["type"] = "object";
  return schema;
}

void force_calls(ChatRequest& request, const Tools& tools, const std::string& only) {
  if (request.options.constraint)
    refuse_field("tool_choice", "a call is forced, and the answer is constrained, too; give one of them");
  for (std::size_t i = 0; i < tools.names.size(); ++i) {
    const std::string where = fmt::format("tools[{}].function.parameters", i);
    if (only.empty() || tools.names[i] == only)
      request.forced.push_back({tools.names[i], arguments_schema(tools.parameters[i], where), where});
  }
  if (request.forced.empty())
    refuse_field("tool_choice", fmt::format("no tool is named '{}'", excerpt(only, 64)));
}

void read_tool_fields(RequestFields& fields, ChatRequest& request) {
  const Json::Array* tools = fields.array("tools");
  const Json* choice = fields.take("tool_choice");
  const std::string word = !choice ? "auto" : choice->is_string() ? choice->as_string() : "function";
  const std::string only = choice && !choice->is_string() ? named_choice(*choice) : "";
  const bool forced = word == "required" || !only.empty();
  if (!forced && word != "auto" && word != "none")
    refuse_field("tool_choice", "is 'auto', 'none', 'required' or a function by its name",
                 "unsupported_value");
  request.one_call = !fields.boolean("parallel_tool_calls").value_or(true) || !only.empty();
  if (!tools || tools->empty()) {
    if (forced) refuse_field("tool_choice", "a call is forced, and there are no tools");
    return;
  }
  Tools read = read_tools(*tools);
  if (word == "none") return;
  if (forced) force_calls(request, read, only);
  request.chat["tools"] = std::move(read.definitions);
  request.tools = std::move(read.names);
}

// Variables of a template: plain values, none of which may stand in for what the request itself says. Few,
// since each is looked for among all.
void read_template_variables(RequestFields& fields, ChatRequest& request) {
  constexpr std::size_t kMostVariables = 64;
  const Json* variables = fields.object("chat_template_kwargs");
  if (!variables) return;
  if (variables->members().size() > kMostVariables)
    refuse_field("chat_template_kwargs", fmt::format("has more than {} members", kMostVariables));
  const RequestFields inner(*variables, "chat_template_kwargs");
  for (const Json::Member& member : variables->members()) {
    const std::string name = inner.name(member.first);
    if (request.chat.find(member.first) || member.first == "tools" || member.first == "documents" ||
        member.first == "chat_template")
      refuse_field(name, "may not be set here");
    if (member.second.is_array() || member.second.is_object()) refuse_field(name, "expected a plain value");
    request.chat[member.first] = member.second;
  }
}

void refuse_unsupported(RequestFields& fields) {
  fields.unsupported("modalities", Json::array({"text"}));
  for (const char* key : {"audio", "prediction", "web_search_options", "functions", "function_call",
                          "reasoning_effort", "verbosity"})
    fields.unsupported(key);
}

}  // namespace

Json read_messages(const Json::Array& messages) {
  if (messages.empty()) refuse_field("messages", "is empty; a chat needs at least one message");
  Json shown = Json::array();
  for (std::size_t i = 0; i < messages.size(); ++i)
    shown.push_back(shown_message(messages[i], fmt::format("messages[{}]", i)));
  return shown;
}

Tools read_tools(const Json::Array& tools) {
  if (tools.size() > kTools) refuse_field("tools", fmt::format("has more than {} tools", kTools));
  Tools read{Json(tools), {}, {}};
  for (std::size_t i = 0; i < tools.size(); ++i) {
    RequestFields fields(tools[i], fmt::format("tools[{}]", i));
    if (fields.string("type").value_or("") != "function")
      refuse_field(fields.name("type"), "only tools of type 'function' are supported by this server",
                   "unsupported_value");
    const Json* function = fields.object("function");
    if (!function) refuse_field(fields.name("function"), "is missing", "missing_required_parameter");
    RequestFields inner(*function, fields.name("function"));
    const auto name = inner.string("name");
    if (!name || name->empty()) refuse_field(inner.name("name"), "is missing", "missing_required_parameter");
    inner.string("description");
    const Json* parameters = inner.object("parameters");
    inner.unsupported("strict", Json(false));
    inner.finish();
    fields.finish();
    read.names.push_back(*name);
    read.parameters.push_back(parameters ? *parameters : Json());
  }
  return read;
}

ChatRequest parse_chat_request(std::string_view body, const RequestLimits& limits) {
  const Json json = parse_body(body, limits.body);
  RequestFields fields(json);
  ChatRequest request;
  request.options = read_answer_options(fields, limits);
  // its newer name
  if (const auto most = fields.integer("max_completion_tokens", 1, limits.max_tokens))
    request.options.max_tokens = most;
  const Json::Array* messages = fields.array("messages");
  if (!messages) refuse_field("messages", "is missing", "missing_required_parameter");
  request.chat = Json::object({{"messages", read_messages(*messages)}, {"add_generation_prompt", true}});
  read_tool_fields(fields, request);
  read_template_variables(fields, request);
  const auto top_logprobs = fields.integer("top_logprobs", 0, kMostAlternatives);
  const bool logprobs = fields.boolean("logprobs").value_or(false);
  if (top_logprobs && !logprobs) refuse_field("top_logprobs", "is only allowed when 'logprobs' is true");
  if (logprobs) request.options.logprobs = static_cast<int>(top_logprobs.value_or(0));
  refuse_unsupported(fields);
  fields.finish();
  return request;
}

}  // namespace llmq

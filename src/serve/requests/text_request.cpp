// Bodies of /v1/completions, /tokenize and /detokenize.
#include <fmt/core.h>

#include "serve/requests/answer_options.h"
#include "serve/requests/chat_fields.h"
#include "serve/requests/completion_request.h"

namespace llmq {
namespace {

void add_prompt(TextRequest& request, const Json& one, const std::string& name, const RequestLimits& limits) {
  if (one.is_string()) {
    request.prompts.emplace_back(one.as_string());
  } else if (one.is_array()) {
    request.prompts.emplace_back(read_token_ids(one.items(), name, limits));
  } else {
    refuse_field(name, fmt::format("expected a string or a list of token ids, found {}", one.kind()),
                 "invalid_type");
  }
}

void read_prompts(RequestFields& fields, TextRequest& request, const RequestLimits& limits) {
  const Json* prompt = fields.take("prompt");
  if (!prompt) refuse_field("prompt", "is missing", "missing_required_parameter");
  const bool several =
      prompt->is_array() && !prompt->items().empty() && !prompt->items().front().is_integer();
  if (!several) return add_prompt(request, *prompt, "prompt", limits);
  const std::int64_t most = limits.max_samples / request.options.n;
  if (static_cast<std::int64_t>(prompt->items().size()) > most)
    refuse_field("prompt",
                 fmt::format("{} prompts with n = {} are more than the {} answers allowed to one request",
                             prompt->items().size(), request.options.n, limits.max_samples));
  for (std::size_t i = 0; i < prompt->items().size(); ++i)
    add_prompt(request, prompt->items()[i], fmt::format("prompt[{}]", i), limits);
}

}  // namespace

TextRequest parse_text_request(std::string_view body, const RequestLimits& limits) {
  const Json json = parse_body(body, limits.body);
  RequestFields fields(json);
  TextRequest request;
  request.echo = fields.boolean("echo").value_or(false);
  request.options = read_answer_options(fields, limits, request.echo ? 0 : 1);
  // What scores a prompt asks for no token behind it; one is computed all the same, and not told.
  request.prompt_alone = request.options.max_tokens == 0;
  if (request.prompt_alone) request.options.max_tokens = 1;
  read_prompts(fields, request, limits);
  if (const auto logprobs = fields.integer("logprobs", 0, kMostAlternatives))
    request.options.logprobs = static_cast<int>(*logprobs);
  fields.unsupported("suffix", Json(""));
  fields.unsupported("best_of", Json(request.options.n));
  fields.finish();
  return request;
}

TokenizeRequest parse_tokenize_request(std::string_view body, const RequestLimits& limits) {
  const Json json = parse_body(body, limits.body);
  RequestFields fields(json);
  TokenizeRequest request;
  fields.ignore("model");
  request.prompt = fields.string("prompt");
  if (const Json::Array* messages = fields.array("messages")) {
    if (request.prompt) refuse_field("messages", "is given beside 'prompt'; give one of them");
    request.chat =
        Json::object({{"messages", read_messages(*messages)},
                      {"add_generation_prompt", fields.boolean("add_generation_prompt").value_or(true)}});
    if (const Json::Array* tools = fields.array("tools"))
      request.chat["tools"] = read_tools(*tools).definitions;
  } else if (!request.prompt) {
    refuse_field("prompt", "is missing", "missing_required_parameter");
  }
  request.add_special_tokens = fields.boolean("add_special_tokens").value_or(request.prompt.has_value());
  fields.finish();
  return request;
}

TokenIds parse_detokenize_request(std::string_view body, const RequestLimits& limits) {
  const Json json = parse_body(body, limits.body);
  RequestFields fields(json);
  fields.ignore("model");
  const Json::Array* tokens = fields.array("tokens");
  if (!tokens) refuse_field("tokens", "is missing", "missing_required_parameter");
  TokenIds ids = read_token_ids(*tokens, "tokens", limits);
  fields.finish();
  return ids;
}

}  // namespace llmq

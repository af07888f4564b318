#include "serve/completion_response.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/utf8_sequence.h"

namespace llmq {
namespace {

Json bytes_json(const std::string& bytes) {
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<int>(static_cast<unsigned char>(c)));
  return list;
}

Json scored_json(const std::string& bytes, double logprob) {
  return Json::object({{"token", bytes}, {"logprob", logprob}, {"bytes", bytes_json(bytes)}});
}

Json chat_logprobs(const CompletionPart& part) {
  if (!part.logprobs) return Json();
  Json content = Json::array();
  for (const ScoredToken& token : *part.logprobs) {
    Json one = scored_json(token.bytes, token.logprob);
    Json likeliest = Json::array();
    for (const auto& other : token.likeliest) likeliest.push_back(scored_json(other.first, other.second));
    one["top_logprobs"] = std::move(likeliest);
    content.push_back(std::move(one));
  }
  return Json::object({{"content", std::move(content)}, {"refusal", Json()}});
}

// A key of the completions' top_logprobs; broken characters are told apart by their bytes, as OpenAI does.
std::string token_key(const std::string& bytes) {
  if (is_utf8(bytes)) return bytes;
  std::string key = "bytes:";
  for (const char c : bytes)
    key += fmt::format("\\x{:02x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
  return key;
}

Json text_logprobs(const CompletionPart& part) {
  if (!part.logprobs) return Json();
  Json tokens = Json::array(), values = Json::array(), likeliest = Json::array(), offsets = Json::array();
  std::int64_t offset = part.text_offset;
  for (const ScoredToken& token : *part.logprobs) {
    tokens.push_back(token_key(token.bytes));
    values.push_back(token.logprob);
    Json others = std::isnan(token.logprob) ? Json() : Json::object();
    for (const auto& other : token.likeliest) others[token_key(other.first)] = other.second;
    likeliest.push_back(std::move(others));
    offsets.push_back(offset);
    offset += token.characters;
  }
  return Json::object({{"tokens", std::move(tokens)},
                       {"token_logprobs", std::move(values)},
                       {"top_logprobs", std::move(likeliest)},
                       {"text_offset", std::move(offsets)}});
}

Json reason_json(const CompletionPart& part) {
  return part.finish_reason.empty() ? Json() : Json(part.finish_reason);
}

Json calls_json(const std::vector<ToolCall>& calls, bool streamed) {
  Json list = Json::array();
  int index = 0;
  for (const ToolCall& call : calls) {
    Json one = streamed ? Json::object({{"index", index}}) : Json::object();
    ++index;
    one["id"] = call.id;
    one["type"] = "function";
    one["function"] = Json::object({{"name", call.name}, {"arguments", call.arguments}});
    list.push_back(std::move(one));
  }
  return list;
}

Json opened(const CompletionHead& head, const char* object, Json choices) {
  return Json::object({{"id", head.id},
                       {"object", object},
                       {"created", head.created},
                       {"model", head.model},
                       {"choices", std::move(choices)}});
}

Json text_choice(const CompletionPart& part) {
  return Json::object({{"text", part.text},
                       {"index", part.index},
                       {"logprobs", text_logprobs(part)},
                       {"finish_reason", reason_json(part)}});
}

Json chat_choice(const CompletionPart& part, const char* key, Json message) {
  return Json::object({{"index", part.index},
                       {key, std::move(message)},
                       {"logprobs", chat_logprobs(part)},
                       {"finish_reason", reason_json(part)}});
}

Json chunk(const CompletionHead& head, const char* object, Json choice) {
  return opened(head, object, Json::array({std::move(choice)}));
}

constexpr char kTextObject[] = "text_completion", kChatChunk[] = "chat.completion.chunk";

}  // namespace

Json usage_json(const Usage& usage) {
  return Json::object({{"prompt_tokens", usage.prompt_tokens},
                       {"completion_tokens", usage.completion_tokens},
                       {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
                       {"prompt_tokens_details", Json::object({{"cached_tokens", usage.cached_tokens}})}});
}

Json text_completion(const CompletionHead& head, const std::vector<CompletionPart>& answers,
                     const Usage& usage) {
  Json choices = Json::array();
  for (const CompletionPart& answer : answers) choices.push_back(text_choice(answer));
  Json json = opened(head, kTextObject, std::move(choices));
  json["usage"] = usage_json(usage);
  return json;
}

Json chat_completion(const CompletionHead& head, const std::vector<CompletionPart>& answers,
                     const Usage& usage) {
  Json choices = Json::array();
  for (const CompletionPart& answer : answers) {
    const bool calls = !answer.tool_calls.empty();
    Json message = Json::object({{"role", "assistant"},
                                 {"content", calls && answer.text.empty() ? Json() : Json(answer.text)},
                                 {"refusal", Json()}});
    if (calls) message["tool_calls"] = calls_json(answer.tool_calls, false);
    choices.push_back(chat_choice(answer, "message", std::move(message)));
  }
  Json json = opened(head, "chat.completion", std::move(choices));
  json["usage"] = usage_json(usage);
  return json;
}

Json text_chunk(const CompletionHead& head, const CompletionPart& part) {
  return chunk(head, kTextObject, text_choice(part));
}

Json chat_chunk(const CompletionHead& head, const CompletionPart& part) {
  Json delta = Json::object();
  if (!part.text.empty()) delta["content"] = part.text;
  if (!part.tool_calls.empty()) delta["tool_calls"] = calls_json(part.tool_calls, true);
  return chunk(head, kChatChunk, chat_choice(part, "delta", std::move(delta)));
}

Json chat_role_chunk(const CompletionHead& head, int index) {
  CompletionPart nothing;
  nothing.index = index;
  return chunk(head, kChatChunk,
               chat_choice(nothing, "delta", Json::object({{"role", "assistant"}, {"content", ""}})));
}

Json usage_chunk(const CompletionHead& head, bool chat, const Usage& usage) {
  Json json = opened(head, chat ? kChatChunk : kTextObject, Json::array());
  json["usage"] = usage_json(usage);
  return json;
}

std::string event_text(const Json& chunk) { return "data: " + chunk.dump() + "\n\n"; }

std::int64_t characters_of(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u; });
}

}  // namespace llmq

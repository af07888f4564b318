// Answers as OpenAI's clients read them: whole bodies and the chunks of a stream, for completions and chats.
//
// Pure functions of values. Text and tokens may hold broken UTF-8; what is written is JSON all the same
// (U+FFFD), and a token's own bytes are always given.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace llmq {

struct ScoredToken {
  std::string bytes;
  double logprob = 0;                                     // NaN: of the first token there is none
  std::vector<std::pair<std::string, double>> likeliest;  // the most likely first
  std::int64_t characters = 0;                            // that it adds to the text; none if it is special
};

struct ToolCall {
  std::string id, name, arguments;  // arguments: the text of a JSON object
};

// One answer, or what one chunk adds to it.
struct CompletionPart {
  int index = 0;
  std::string text;
  std::optional<std::vector<ScoredToken>> logprobs;
  std::int64_t text_offset = 0;  // characters of the answer before this part
  std::vector<ToolCall> tool_calls;
  std::string finish_reason;  // empty: goes on
};

struct CompletionHead {
  std::string id;  // "cmpl-...", "chatcmpl-..."
  std::string model;
  std::int64_t created = 0;  // seconds since 1970
};

struct Usage {
  std::int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
};

Json text_completion(const CompletionHead& head, const std::vector<CompletionPart>& answers,
                     const Usage& usage);
Json chat_completion(const CompletionHead& head, const std::vector<CompletionPart>& answers,
                     const Usage& usage);

Json text_chunk(const CompletionHead& head, const CompletionPart& part);
Json chat_chunk(const CompletionHead& head, const CompletionPart& part);
Json chat_role_chunk(const CompletionHead& head, int index);  // opens each answer of a chat
Json usage_json(const Usage& usage);
Json usage_chunk(const CompletionHead& head, bool chat, const Usage& usage);

std::string event_text(const Json& chunk);  // "data: {...}\n\n"
inline constexpr char kLastEvent[] = "data: [DONE]\n\n";

std::int64_t characters_of(const std::string& text);

}  // namespace llmq

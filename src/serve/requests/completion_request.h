// The bodies of /v1/completions, /v1/chat/completions, /tokenize and /detokenize as typed values.
//
// Pure functions of text: no model, tokenizer or connection. Everything that can be wrong without them is
// ApiError 400 here: unknown fields, wrong types, ranges, and parts of OpenAI's API that this server does not
// carry out, each by its name. Beside OpenAI's fields: top_k, min_p, repetition_penalty, stop_token_ids,
// min_tokens, ignore_eos, priority (the lower the sooner), structured_outputs, chat_template_kwargs and
// stream_options.continuous_usage_stats, as vLLM has them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"
#include "grammar/constraint.h"
#include "runtime/sampler.h"
#include "serve/requests/request_fields.h"

namespace llmq {

struct RequestLimits {
  BodyLimits body;
  std::int64_t max_samples = 128;       // prompts x n of one request
  std::int64_t vocabulary_size = 0;     // ids are below
  std::int64_t max_tokens = 1'000'000;  // refused beyond, before the prompt's length is known
};

struct AnswerOptions {
  std::string model;  // empty: the one that is served
  // none: 16 for completions, for chats what the context has room for
  std::optional<std::int64_t> max_tokens;
  std::int64_t min_tokens = 0;               // no end before
  SamplingOptions sampling;                  // but for its seed
  std::optional<std::uint64_t> seed;         // none: another one for every request
  std::optional<ConstraintSpec> constraint;  // not compiled yet
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_token_ids;
  bool ignore_eos = false;
  int n = 1;
  std::optional<int> logprobs;  // of the chosen token and of this many of the likeliest
  int priority = 0;
  bool stream = false;
  bool include_usage = false, continuous_usage = false;  // at the end of a stream; in each of its chunks
};

using TokenIds = std::vector<std::int32_t>;

struct TextRequest {
  AnswerOptions options;
  std::vector<std::variant<std::string, TokenIds>> prompts;
  bool echo = false;
  bool prompt_alone = false;  // max_tokens: 0, beside echo
};

struct ChatRequest {
  AnswerOptions options;
  // what the template sees: messages, tools, add_generation_prompt, its own variables
  Json chat;
  std::vector<std::string> tools;  // names of the functions that may be called; empty: answers are text
  // Functions one of which the answer must call (tool_choice), and nothing else; none: as it likes.
  struct Forced {
    std::string name;
    Json arguments;     // their schema
    std::string where;  // the field it came from
  };
  std::vector<Forced> forced;
  bool one_call = false;  // an answer calls one function at most
};

struct TokenizeRequest {
  std::optional<std::string> prompt;  // or else
  Json chat;
  bool add_special_tokens = true;
};

// Of /v1/load_lora_adapter and /v1/unload_lora_adapter, in vLLM's words.
struct AdapterRequest {
  std::string name, path;
  bool in_place = false;  // another one of the name is replaced
};

TextRequest parse_text_request(std::string_view body, const RequestLimits& limits);
ChatRequest parse_chat_request(std::string_view body, const RequestLimits& limits);
TokenizeRequest parse_tokenize_request(std::string_view body, const RequestLimits& limits);
TokenIds parse_detokenize_request(std::string_view body, const RequestLimits& limits);
AdapterRequest parse_load_adapter_request(std::string_view body, const RequestLimits& limits);
std::string parse_unload_adapter_request(std::string_view body, const RequestLimits& limits);  // its name

}  // namespace llmq

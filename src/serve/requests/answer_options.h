// The fields that completions and chats share (completion_request.h), read from a request's fields.
#pragma once
#include <string>

#include "serve/requests/completion_request.h"

namespace llmq {

inline constexpr int kMostAlternatives = 20;  // of a token, in logprobs

// Without `logprobs`, which means something else in a chat.
AnswerOptions read_answer_options(RequestFields& fields, const RequestLimits& limits,
                                  std::int64_t least_tokens = 1);
TokenIds read_token_ids(const Json::Array& list, const std::string& name, const RequestLimits& limits);

}  // namespace llmq

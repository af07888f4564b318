#include "runtime/generation.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace llmq {
namespace {

// "--top-p" -> "top_p": what the command line calls an option, as a request calls it.
std::string field_of(std::string_view flag) {
  while (flag.starts_with('-')) flag.remove_prefix(1);
  std::string field(flag);
  std::replace(field.begin(), field.end(), '-', '_');
  return field;
}

GenerationRefusal invalid(std::string field, std::string message) {
  return {GenerationRefusal::Kind::kInvalid, std::move(field), std::move(message)};
}

}  // namespace

std::optional<GenerationRefusal> check_request(const GenerationRequest& request, std::int64_t vocabulary,
                                               std::int64_t most_answers, bool text) {
  const auto outside = [&](std::int32_t token) { return token < 0 || token >= vocabulary; };
  if (request.prompt.empty()) return invalid("prompt", "the prompt has no tokens");
  for (const std::int32_t token : request.prompt)
    if (outside(token))
      return invalid("prompt", fmt::format("token {} is outside the vocabulary of {}", token, vocabulary));
  if (request.max_tokens < 1)
    return invalid("max_tokens",
                   fmt::format("max_tokens is {}, and at least 1 is needed", request.max_tokens));
  if (request.min_tokens < 0 || request.min_tokens > request.max_tokens)
    return invalid("min_tokens", fmt::format("min_tokens is {}, which is not between 0 and max_tokens ({})",
                                             request.min_tokens, request.max_tokens));
  if (request.n < 1 || request.n > most_answers)
    return invalid("n", fmt::format("n is {}, which is not between 1 and {}", request.n, most_answers));
  if (request.logprobs && (*request.logprobs < 0 || *request.logprobs > vocabulary))
    return invalid("logprobs", fmt::format("logprobs is {}, which is not between 0 and {}", *request.logprobs,
                                           vocabulary));
  if (request.prompt_logprobs && (*request.prompt_logprobs < 0 || *request.prompt_logprobs > vocabulary))
    return invalid("prompt_logprobs", fmt::format("prompt_logprobs is {}, which is not between 0 and {}",
                                                  *request.prompt_logprobs, vocabulary));
  if (!request.stop.empty() && !text) return invalid("stop", "stop strings need a tokenizer");
  for (const std::string& stop : request.stop)
    if (stop.empty()) return invalid("stop", "a stop string is empty");
  for (const auto& entry : request.sampling.logit_bias)
    if (outside(entry.first))
      return invalid("logit_bias",
                     fmt::format("token {} is outside the vocabulary of {}", entry.first, vocabulary));
  try {
    check_sampling(request.sampling);
  } catch (const Error& error) {
    const std::string field = field_of(error.detail().where);
    return invalid(field, fmt::format("{}: {}", field, error.detail().message));
  }
  return std::nullopt;
}

}  // namespace llmq

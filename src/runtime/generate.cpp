#include "runtime/generate.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/seconds_since.h"

namespace llmq {
namespace {

using Clock = std::chrono::steady_clock;

void check(const Engine& engine, std::span<const std::int32_t> prompt, const GenerateOptions& options) {
  if (prompt.empty())
    fail(ErrorKind::kUsage, {"the prompt has no tokens", {}, "--prompt", "give at least one character"});
  if (options.max_tokens < 0 || options.prefill_chunk < 1)
    fail(ErrorKind::kUsage, "{} tokens in chunks of {} cannot be generated", options.max_tokens,
         options.prefill_chunk);
  if (static_cast<std::int64_t>(prompt.size()) > engine.options().max_context)
    fail(ErrorKind::kUsage, {fmt::format("the prompt has {} tokens and the context holds {}", prompt.size(),
                                         engine.options().max_context),
                             {},
                             {},
                             "shorten the prompt"});
}

GenerationRequest request_of(std::span<const std::int32_t> prompt, const GenerateOptions& options) {
  GenerationRequest request;
  request.prompt.assign(prompt.begin(), prompt.end());
  request.max_tokens = options.max_tokens;
  request.min_tokens = options.min_tokens;
  request.sampling = options.sampling;
  request.stop = options.stop;
  request.ignore_eos = options.ignore_eos;
  request.constraint = options.constraint;
  return request;
}

ServingOptions serving_options(const Engine& engine, const GenerateOptions& options) {
  ServingOptions serving;
  serving.limits.max_num_seqs = 1;
  serving.limits.max_num_batched_tokens = options.prefill_chunk;
  serving.limits.max_model_len = engine.options().max_context + 1;
  serving.num_draft_tokens = options.num_draft_tokens;
  return serving;
}

// One request from its first step to its last; `on_event` ends it by false.
Generated run(Engine& engine, const Tokenizer* tokenizer, std::span<const std::int32_t> prompt,
              const GenerateOptions& options, const std::function<bool(const GenerationEvent&)>& on_event) {
  check_sampling(options.sampling);
  check(engine, prompt, options);
  Generated result;
  result.finish_reason = "length";
  if (options.max_tokens == 0) return result;
  const Clock::time_point start = Clock::now();
  ServingEngine serving(engine, tokenizer, serving_options(engine, options), options.drafter);
  if (const auto refusal = serving.submit(request_of(prompt, options)))
    fail(ErrorKind::kUsage, {refusal->message, {}, {}, {}});
  std::int64_t first_tokens = 0;
  Clock::time_point first = start, last = start;
  while (!serving.idle()) {
    for (const GenerationEvent& event : serving.step()) {
      last = Clock::now();
      if (first == start) {
        first = last;
        first_tokens = static_cast<std::int64_t>(event.tokens.size());
      }
      if (event.finish == FinishReason::kFailed)
        fail(ErrorKind::kUnsupported, {event.failure, {}, {}, "take a simpler constraint"});
      if (event.finish == FinishReason::kStop) result.finish_reason = "stop";
      if (on_event(event)) continue;
      result.finish_reason = "stop";
      serving.cancel(0);
      serving.step();
      break;
    }
  }
  const ServingStatistics& statistics = serving.statistics();
  result.ttft_seconds = seconds_between(start, first);
  if (last > first)
    result.tokens_per_second =
        static_cast<double>(statistics.generated_tokens - first_tokens) / seconds_between(first, last);
  result.draft_rounds = statistics.draft_rounds;
  result.drafted = statistics.drafted;
  result.accepted = statistics.accepted;
  return result;
}

}  // namespace

Generated generate_tokens(Engine& engine, std::span<const std::int32_t> prompt,
                          const GenerateOptions& options, const std::function<bool(std::int32_t)>& on_token) {
  std::vector<std::int32_t> tokens;
  Generated result = run(engine, nullptr, prompt, options, [&](const GenerationEvent& event) {
    for (const std::int32_t token : event.tokens) {
      tokens.push_back(token);
      if (!on_token(token)) return false;
    }
    return true;
  });
  result.tokens = std::move(tokens);
  return result;
}

GeneratedText generate(Engine& engine, const Tokenizer& tokenizer, std::span<const std::int32_t> prompt,
                       const GenerateOptions& options, const std::function<void(std::string_view)>& on_text) {
  GeneratedText result;
  result.prompt_tokens = static_cast<std::int64_t>(prompt.size());
  std::vector<std::int32_t> tokens;
  result.generated = run(engine, &tokenizer, prompt, options, [&](const GenerationEvent& event) {
    tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
    result.text += event.text;
    if (!event.text.empty()) on_text(event.text);
    return true;
  });
  result.generated.tokens = std::move(tokens);
  return result;
}

}  // namespace llmq

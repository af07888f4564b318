#include "serve/completion_sink.h"

#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <iterator>
#include <numeric>

#include "base/log.h"
#include "base/seconds_since.h"
#include "http/request_id.h"
#include "tokenizer/token_bytes.h"

namespace llmq {
namespace {

constexpr char kTextPath[] = "/v1/completions", kChatPath[] = "/v1/chat/completions";

const char* reason_word(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
    case FinishReason::kFailed:
      break;
  }
  return "cancelled";
}

ApiError refusal_error(const GenerationRefusal& refusal) {
  switch (refusal.kind) {
    case GenerationRefusal::Kind::kBusy:
      return ApiError(429, "the server is busy: " + refusal.message, {}, "queue_full");
    case GenerationRefusal::Kind::kTooLong:
      return ApiError(400, refusal.message, refusal.field, "context_length_exceeded");
    case GenerationRefusal::Kind::kUnknownModel:
      return ApiError(404, refusal.message, refusal.field, "model_not_found");
    case GenerationRefusal::Kind::kInvalid:
      break;
  }
  return ApiError(400, refusal.message, refusal.field);
}

}  // namespace

CompletionSink::CompletionSink(Asked asked, const ServedModel& model, Metrics& metrics,
                               std::shared_ptr<HttpResponder> answer)
    : asked_(std::move(asked)), model_(model), metrics_(metrics), answer_(std::move(answer)) {
  head_ = {(asked_.chat ? "chatcmpl-" : "cmpl-") + asked_.id,
           asked_.adapter.empty() ? model.name : asked_.adapter,
           static_cast<std::int64_t>(std::time(nullptr))};
  usage_.prompt_tokens =
      std::accumulate(asked_.prompt_tokens.begin(), asked_.prompt_tokens.end(), std::int64_t{0});
  const std::size_t n = static_cast<std::size_t>(asked_.options.n);
  for (std::size_t i = 0; i < asked_.prompt_tokens.size() * n; ++i) {
    Choice& choice = choices_.emplace_back(asked_.tools, asked_.one_call);
    choice.whole.index = static_cast<int>(i);
    choice.usage.prompt_tokens = asked_.prompt_tokens[i / n];
    if (asked_.options.logprobs) choice.whole.logprobs.emplace();
    if (!asked_.echoes.empty()) choice.whole.text = asked_.echoes[i / n];
  }
  unfinished_ = choices_.size();
}

void CompletionSink::accepted(std::uint64_t first) {
  first_ = first;
  if (!asked_.options.stream) return;
  answer_->open_stream("text/event-stream");
  for (Choice& choice : choices_) {
    if (asked_.chat) write_chunk(choice, chat_role_chunk(head_, choice.whole.index));
    if (choice.whole.text.empty()) continue;
    choice.characters = characters_of(choice.whole.text);
    CompletionPart echo;
    echo.index = choice.whole.index;
    echo.text = choice.whole.text;
    send(choice, echo);
  }
}

void CompletionSink::refused(const GenerationRefusal& refusal) {
  const ApiError error = refusal_error(refusal);
  error.log(asked_.chat ? kChatPath : kTextPath, asked_.log_fields);
  trace_end(seconds_between(asked_.received, std::chrono::steady_clock::now()), refusal.message);
  answer_->reply(error.reply());
}

void CompletionSink::failed(const std::string& message) {
  Log::get().warn(head_.id + " failed: " + message, asked_.log_fields);
  trace_end(seconds_between(asked_.received, std::chrono::steady_clock::now()), message);
  end_with(ApiError(500, "the model failed while it answered; the server's log says why"));
}

void CompletionSink::end_with(const ApiError& error) {
  if (!asked_.options.stream)
    return answer_->reply({error.status(), "application/json", error.body().dump(), {}});
  answer_->write(event_text(error.body()) + kLastEvent);
  answer_->end();
}

std::vector<ScoredToken> CompletionSink::scored(const std::vector<TokenLogprobs>& logprobs) const {
  const TokenBytes bytes(model_.tokenizer);
  std::vector<ScoredToken> list;
  for (const TokenLogprobs& one : logprobs) {
    const std::int32_t id = one.chosen.token;
    ScoredToken& token = list.emplace_back(ScoredToken{bytes(id), one.chosen.logprob, {}, 0});
    if (!model_.tokenizer.is_special(id)) token.characters = characters_of(token.bytes);
    for (const TokenLogprob& other : one.likeliest)
      token.likeliest.emplace_back(bytes(other.token), other.logprob);
  }
  return list;
}

// The tokens of an echoed prompt stand before those that follow it; nothing is said of the first, before
// which there is none. A text begins without the blank that its first token may have.
void CompletionSink::tell_prompt(Choice& choice, const GenerationEvent& event, CompletionPart& part) const {
  if (asked_.first_tokens.empty() || choice.prompt_told) return;
  choice.prompt_told = true;
  TokenLogprobs first;
  first.chosen = {asked_.first_tokens.at(static_cast<std::size_t>(choice.whole.index / asked_.options.n)),
                  std::nan("")};
  std::vector<TokenLogprobs> all = event.prompt_logprobs;
  all.insert(all.begin(), first);
  std::vector<ScoredToken> prompt = scored(all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::int32_t id = all[i].chosen.token;
    if (model_.tokenizer.is_special(id)) continue;
    prompt[i].characters = characters_of(model_.tokenizer.decode(std::span(&id, 1), true));
    break;
  }
  part.logprobs->insert(part.logprobs->begin(), std::make_move_iterator(prompt.begin()),
                        std::make_move_iterator(prompt.end()));
  part.text_offset = choice.characters = 0;
}

// What this event adds to its answer.
CompletionPart CompletionSink::part_of(Choice& choice, const GenerationEvent& event) {
  CompletionPart part;
  part.index = choice.whole.index;
  part.text = choice.calls.push(event.text);
  part.text_offset = choice.characters;
  if (asked_.options.logprobs) {
    part.logprobs = scored(event.logprobs);
    tell_prompt(choice, event, part);
  }
  if (event.finish) {
    ToolCallReader::Rest rest = choice.calls.finish();
    part.text += rest.text;
    part.tool_calls = std::move(rest.calls);
    for (ToolCall& call : part.tool_calls) call.id = unique_name("call_");
    part.finish_reason = part.tool_calls.empty() ? reason_word(*event.finish) : "tool_calls";
  }
  for (const ScoredToken& token : part.logprobs.value_or(std::vector<ScoredToken>()))
    choice.characters += token.characters;
  return part;
}

void CompletionSink::measure(Choice& choice, const GenerationEvent& event, Time now) {
  const auto tokens = static_cast<std::int64_t>(event.tokens.size());
  if (event.index == 0) usage_.cached_tokens += event.cached_tokens - choice.usage.cached_tokens;
  usage_.completion_tokens += tokens;
  choice.usage.completion_tokens += tokens;
  choice.usage.cached_tokens = event.cached_tokens;
  if (tokens == 0) return;
  if (choice.begun) {
    metrics_.more_tokens(seconds_between(choice.last, now), tokens);
  } else if (first_token_seconds_ == 0) {
    first_token_seconds_ = seconds_between(asked_.received, now);
    metrics_.first_token(first_token_seconds_);
  }
  choice.begun = true;
  choice.last = now;
}

void CompletionSink::started(std::uint64_t, Time now) {
  queue_seconds_ = seconds_between(asked_.received, now);
  metrics_.queued(queue_seconds_);
}

void CompletionSink::event(const GenerationEvent& event, Time now) {
  if (!asked_.prompt_alone) return tell(event, now);
  GenerationEvent of_prompt = event;
  of_prompt.text.clear();
  of_prompt.tokens.clear();
  of_prompt.logprobs.clear();
  if (event.finish == FinishReason::kStop) of_prompt.finish = FinishReason::kLength;
  tell(of_prompt, now);
}

void CompletionSink::tell(const GenerationEvent& event, Time now) {
  const std::size_t place = (event.id - first_) * static_cast<std::size_t>(asked_.options.n) +
                            static_cast<std::size_t>(event.index);
  Choice& choice = choices_.at(place);
  measure(choice, event, now);
  CompletionPart part = part_of(choice, event);
  cancelled_ = cancelled_ || event.finish == FinishReason::kCancelled;
  if (event.finish == FinishReason::kFailed) failure_ = event.failure;
  if (event.finish) reasons_.insert(event.finish == FinishReason::kFailed ? "error" : part.finish_reason);
  if (asked_.options.stream) {
    if (event.finish == FinishReason::kFailed) part.finish_reason = "error";
    const bool counts = asked_.options.continuous_usage && !event.tokens.empty();
    if (!part.text.empty() || (part.logprobs && !part.logprobs->empty()) || event.finish || counts)
      send(choice, part);
  } else {
    choice.whole.text += part.text;
    if (part.logprobs)
      choice.whole.logprobs->insert(choice.whole.logprobs->end(), part.logprobs->begin(),
                                    part.logprobs->end());
    choice.whole.tool_calls = std::move(part.tool_calls);
    choice.whole.finish_reason = part.finish_reason;
  }
  if (event.finish && --unfinished_ == 0) finish(now);
}

void CompletionSink::send(const Choice& choice, const CompletionPart& part) {
  write_chunk(choice, asked_.chat ? chat_chunk(head_, part) : text_chunk(head_, part));
}

// Usage as vLLM tells it: in each chunk that of its own answer so far, or null until that of all answers.
void CompletionSink::write_chunk(const Choice& choice, Json chunk) {
  if (asked_.options.continuous_usage)
    chunk["usage"] = usage_json(choice.usage);
  else if (asked_.options.include_usage)
    chunk["usage"] = Json();
  answer_->write(event_text(chunk));
}

void CompletionSink::log_end(double seconds) const {
  Json fields = asked_.log_fields;
  fields["model"] = head_.model;
  fields["prompt_tokens"] = usage_.prompt_tokens;
  fields["completion_tokens"] = usage_.completion_tokens;
  fields["ttft_s"] = first_token_seconds_;
  fields["seconds"] = seconds;
  fields["finish_reason"] = fmt::format("{}", fmt::join(reasons_, ","));
  if (!cancelled_) fields["status"] = failure_.empty() || asked_.options.stream ? 200 : 400;
  Log::get().detail(fmt::format("{}: {} + {} tokens, the first after {:.3f} s, all after {:.3f} s{}",
                                head_.id, usage_.prompt_tokens, usage_.completion_tokens,
                                first_token_seconds_, seconds, cancelled_ ? "; cancelled" : ""),
                    fields);
}

// One span a request, with the attributes that vLLM gives it (vllm/tracing/utils.py and
// v1/engine/output_processor.py of 0.33): seconds, and what was not asked for is not said.
void CompletionSink::trace_end(double seconds, const std::string& failure) const {
  if (!TraceFile::get().is_open()) return;
  const std::int64_t ended = unix_time_ns();
  const AnswerOptions& options = asked_.options;
  Json said = Json::object({{"gen_ai.request.id", asked_.id},
                            {"gen_ai.response.model", head_.model},
                            {"gen_ai.request.n", options.n},
                            {"gen_ai.request.temperature", options.sampling.temperature},
                            {"gen_ai.request.top_p", options.sampling.top_p}});
  if (options.max_tokens) said["gen_ai.request.max_tokens"] = *options.max_tokens;
  said["gen_ai.usage.prompt_tokens"] = usage_.prompt_tokens;
  said["gen_ai.usage.completion_tokens"] = usage_.completion_tokens;
  said["gen_ai.latency.e2e"] = seconds;
  if (first_token_seconds_ > 0) {
    said["gen_ai.latency.time_in_queue"] = queue_seconds_;
    said["gen_ai.latency.time_to_first_token"] = first_token_seconds_;
    said["gen_ai.latency.time_in_model_prefill"] = first_token_seconds_ - queue_seconds_;
    said["gen_ai.latency.time_in_model_decode"] = seconds - first_token_seconds_;
    said["gen_ai.latency.time_in_model_inference"] = seconds - queue_seconds_;
  }
  const auto started = ended - static_cast<std::int64_t>(seconds * 1e9);
  TraceFile::get().write(
      {"llm_request", Span::Kind::kServer, asked_.trace, started, ended, std::move(said), failure});
}

void CompletionSink::finish(Time now) {
  const double seconds = seconds_between(asked_.received, now);
  log_end(seconds);
  trace_end(seconds, failure_);
  if (cancelled_) return;  // nobody reads it
  metrics_.finished(seconds, usage_.prompt_tokens, usage_.completion_tokens);
  if (!failure_.empty())
    return end_with(
        ApiError(400, failure_, asked_.options.constraint ? asked_.options.constraint->where : ""));
  if (asked_.options.stream) {
    if (asked_.options.include_usage) answer_->write(event_text(usage_chunk(head_, asked_.chat, usage_)));
    answer_->write(kLastEvent);
    return answer_->end();
  }
  std::vector<CompletionPart> answers;
  for (Choice& choice : choices_) answers.push_back(std::move(choice.whole));
  const Json body =
      asked_.chat ? chat_completion(head_, answers, usage_) : text_completion(head_, answers, usage_);
  answer_->reply({200, "application/json", body.dump(), {}});
}

}  // namespace llmq

// How completions, chats and tokenizing go from a body to the engine.
#include <fmt/core.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "base/log.h"
#include "serve/api.h"
#include "serve/api_error.h"

namespace llmq {
namespace {

// Log probabilities of one request's prompts, each as often as it is answered: some 100 MB of answer. Of a
// stream of several answers their prompts are told at once, which must not be more than a client may leave
// unread.
constexpr std::int64_t kMostScored = 1 << 20, kMostScoredAtOnce = 1 << 16;

std::uint64_t any_seed() {
  thread_local std::mt19937_64 seeds{(std::uint64_t{std::random_device()()} << 32) | std::random_device()()};
  return seeds();
}

}  // namespace

std::string Api::rendered(const Json& chat) const {
  if (!model_.chat_template)
    throw ApiError(400, "this model has no chat template; use /v1/completions", "messages",
                   "no_chat_template");
  return model_.chat_template->render(chat, local_time());
}

TokenIds Api::encoded(const std::string& text, bool special, const std::string& field) const {
  if (text.size() > most_prompt_bytes_)
    throw ApiError(400,
                   fmt::format("the prompt has {} bytes, more than the context of {} tokens can hold",
                               text.size(), model_.max_model_len),
                   field, "context_length_exceeded");
  return model_.tokenizer.encode(text, special);
}

GenerationRequest Api::generation(const AnswerOptions& options, TokenIds prompt, const std::string& tenant,
                                  bool chat) const {
  constexpr std::int64_t kTextTokens = 16;  // OpenAI's default
  const auto length = static_cast<std::int64_t>(prompt.size());
  const char* field = chat ? "messages" : "prompt";
  if (length == 0) throw ApiError(400, "the prompt has no token", field);
  const std::int64_t room = model_.max_model_len - length;
  if (room < 1 || options.max_tokens.value_or(1) > room)
    throw ApiError(
        400,
        fmt::format(
            "the context holds {} tokens, but {} were asked for: {} in the prompt and {} to be written",
            model_.max_model_len, length + options.max_tokens.value_or(1), length,
            options.max_tokens.value_or(1)),
        field, "context_length_exceeded");
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = options.max_tokens.value_or(chat ? room : std::min(kTextTokens, room));
  request.min_tokens = options.min_tokens;
  request.sampling = options.sampling;
  request.sampling.seed = options.seed ? *options.seed : any_seed();
  request.stop = options.stop;
  request.stop_tokens = options.stop_token_ids;
  request.ignore_eos = options.ignore_eos;
  request.n = options.n;
  if (options.logprobs) request.logprobs = *options.logprobs;
  request.priority = options.priority;
  request.tenant = tenant;
  return request;
}

std::shared_ptr<const Constraint> Api::constraint_of(const AnswerOptions& options) {
  if (!options.constraint) return nullptr;
  if (!pieces_) pieces_ = std::make_shared<const TokenPieces>(model_.tokenizer);
  return compile_constraint(*options.constraint, pieces_);
}

void Api::submit(std::vector<GenerationRequest> requests, CompletionSink::Asked asked,
                 const Responder& responder) {
  const std::size_t count = requests.size();
  for (const GenerationRequest& request : requests)
    asked.prompt_tokens.push_back(static_cast<std::int64_t>(request.prompt.size()));
  auto sink = std::make_shared<CompletionSink>(std::move(asked), model_, metrics_, responder);
  const std::uint64_t first = engine_.submit(std::move(requests), std::move(sink));
  if (first == EngineThread::kRefused)
    throw ApiError(429, "the server is busy: its queue is full", {}, "queue_full");
  responder->when_gone([engine = &engine_, first, count] { engine->cancel(first, count); });
}

void Api::log_prompt(const HttpRequest& request) const {
  if (!options_.log_prompts) return;
  Json fields = log_fields(request);
  fields["path"] = request.path;
  Log::get().note(fmt::format("{} {} {}", request.id, request.path, Json(request.body).dump()), fields);
}

void Api::complete_text(const HttpRequest& request, const std::string& tenant, const Responder& responder) {
  TextRequest text = parse_text_request(request.body, options_.limits);
  const std::string adapter = adapter_of(text.options.model);
  log_prompt(request);
  CompletionSink::Asked asked{
      false,      text.options,        {},           {}, {}, {}, request.received, false, adapter,
      request.id, log_fields(request), request.trace};
  asked.prompt_alone = text.prompt_alone;
  std::vector<GenerationRequest> requests;
  std::int64_t scored = 0;
  const auto constraint = constraint_of(text.options);
  for (auto& prompt : text.prompts) {
    const std::string* words = std::get_if<std::string>(&prompt);
    TokenIds ids = words ? encoded(*words, true, "prompt") : std::get<TokenIds>(std::move(prompt));
    if (text.echo) asked.echoes.push_back(words ? *words : model_.tokenizer.decode(ids, true));
    if (text.echo && text.options.logprobs) {
      const bool several = text.options.stream && (text.prompts.size() > 1 || text.options.n > 1);
      const std::int64_t most = several ? kMostScoredAtOnce : kMostScored;
      scored += static_cast<std::int64_t>(ids.size()) * (1 + *text.options.logprobs) * text.options.n;
      if (scored > most)
        throw ApiError(400,
                       fmt::format("log probabilities of more than {} tokens would be told{}", most,
                                   several ? " by one stream" : ""),
                       "prompt");
      asked.first_tokens.push_back(ids.empty() ? 0 : ids.front());
    }
    requests.push_back(generation(text.options, std::move(ids), tenant, false));
    if (text.echo && text.options.logprobs) requests.back().prompt_logprobs = *text.options.logprobs;
    requests.back().constraint = constraint;
    requests.back().adapter = adapter;
  }
  submit(std::move(requests), std::move(asked), responder);
}

void Api::complete_chat(const HttpRequest& request, const std::string& tenant, const Responder& responder) {
  ChatRequest chat = parse_chat_request(request.body, options_.limits);
  const std::string adapter = adapter_of(chat.options.model);
  log_prompt(request);
  const std::string prompt = rendered(chat.chat);
  TokenIds ids = encoded(prompt, false, "messages");
  std::vector<GenerationRequest> requests;
  if (!chat.forced.empty())
    chat.options.constraint = forced_calls(tool_call_form(prompt), chat.forced, chat.one_call);
  requests.push_back(generation(chat.options, std::move(ids), tenant, true));
  requests.back().constraint = constraint_of(chat.options);
  requests.back().adapter = adapter;
  submit(std::move(requests),
         {true,
          chat.options,
          {},
          {},
          {},
          std::move(chat.tools),
          request.received,
          chat.one_call,
          adapter,
          request.id,
          log_fields(request),
          request.trace},
         responder);
}

void Api::tokenize(const HttpRequest& request, const std::string&, const Responder& responder) {
  const TokenizeRequest asked = parse_tokenize_request(request.body, options_.limits);
  // A text to be counted or cut may be longer than the context, such as one whose perplexity is measured in
  // windows.
  constexpr std::size_t kMostBytes = 2u << 20;
  const std::string text = asked.prompt ? *asked.prompt : rendered(asked.chat);
  if (text.size() > kMostBytes)
    throw ApiError(400,
                   fmt::format("the text has {} bytes, and {} at most are cut into tokens at once",
                               text.size(), kMostBytes),
                   "prompt");
  const TokenIds ids = model_.tokenizer.encode(text, asked.add_special_tokens);
  Json list = Json::array();
  for (const std::int32_t id : ids) list.push_back(id);
  responder->reply(json_reply(Json::object({{"count", static_cast<std::int64_t>(ids.size())},
                                            {"max_model_len", model_.max_model_len},
                                            {"tokens", std::move(list)}})));
}

void Api::detokenize(const HttpRequest& request, const std::string&, const Responder& responder) {
  const TokenIds ids = parse_detokenize_request(request.body, options_.limits);
  responder->reply(json_reply(Json::object({{"prompt", model_.tokenizer.decode(ids)}})));
}

}  // namespace llmq

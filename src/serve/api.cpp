#include "serve/api.h"

#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <random>

#include "base/error.h"
#include "base/log.h"
#include "serve/api_error.h"
#include "serve/page.h"

namespace llmq {
namespace {

// log probabilities of one request's prompts: some 100 MB of answer
constexpr std::int64_t kMostScored = 1 << 20;

HttpReply json_reply(const Json& body) { return {200, "application/json", body.dump(), {}}; }

// Counts the status that an answer gets.
class CountedAnswer : public HttpAnswer {
 public:
  CountedAnswer(std::shared_ptr<HttpAnswer> answer, Metrics& metrics, std::string path)
      : answer_(std::move(answer)), metrics_(metrics), path_(std::move(path)) {}
  void reply(HttpReply reply) override {
    metrics_.http(path_, reply.status);
    answer_->reply(std::move(reply));
  }
  void open_stream(const std::string& content_type) override {
    metrics_.http(path_, 200);
    answer_->open_stream(content_type);
  }
  void write(std::string text) override { answer_->write(std::move(text)); }
  void end() override { answer_->end(); }
  bool gone() const override { return answer_->gone(); }
  void when_gone(std::function<void()> act) override { answer_->when_gone(std::move(act)); }

 private:
  std::shared_ptr<HttpAnswer> answer_;
  Metrics& metrics_;
  std::string path_;
};

bool is_json(std::string_view content_type) {
  std::string type(content_type.substr(0, content_type.find(';')));
  while (!type.empty() && type.back() == ' ') type.pop_back();
  std::transform(type.begin(), type.end(), type.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; });
  return type == "application/json";
}

std::uint64_t any_seed() {
  thread_local std::mt19937_64 seeds{(std::uint64_t{std::random_device()()} << 32) | std::random_device()()};
  return seeds();
}

}  // namespace

bool names_loopback(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, host.find(']')) == "[::1";
  host = host.substr(0, host.find(':'));
  return host == "localhost" ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string_view::npos);
}

// A path reads a body (`read`, on the preparing thread) or none (`tell`, at once).
struct Api::Route {
  const char* path;
  const char* method;
  bool open_to_all;  // without a key
  void (Api::*read)(const HttpRequest&, const std::string&, const Answer&);
  HttpReply (Api::*tell)() const;
};

const std::vector<Api::Route>& Api::routes() {
  static const std::vector<Route> table = {
      {"/v1/completions", "POST", false, &Api::complete_text, nullptr},
      {"/v1/chat/completions", "POST", false, &Api::complete_chat, nullptr},
      {"/v1/embeddings", "POST", false, nullptr, &Api::no_embeddings},
      {"/v1/load_lora_adapter", "POST", false, &Api::load_adapter, nullptr},
      {"/v1/unload_lora_adapter", "POST", false, &Api::unload_adapter, nullptr},
      {"/tokenize", "POST", false, &Api::tokenize, nullptr},
      {"/detokenize", "POST", false, &Api::detokenize, nullptr},
      {"/v1/models", "GET", false, nullptr, &Api::models},
      {"/metrics", "GET", false, nullptr, &Api::metrics_text},
      {"/version", "GET", false, nullptr, &Api::version},
      {"/health", "GET", true, nullptr, &Api::health},
      {"/ready", "GET", true, nullptr, &Api::ready},
      {"/", "GET", true, nullptr, &Api::page},
  };
  return table;
}

Api::Api(const ServedModel& model, ApiOptions options, Metrics& metrics, EngineThread& engine,
         std::function<HttpCounters()> connections)
    : model_(model),
      options_(std::move(options)),
      metrics_(metrics),
      engine_(engine),
      connections_(std::move(connections)),
      most_prompt_bytes_(most_prompt_bytes(model)),
      adapters_(std::make_shared<ServedAdapters>(options_.adapters)),
      preparing_(options_.max_preparing) {}

const Api::Route* Api::route_of(const std::string& path) const {
  for (const Route& route : routes())
    if (path == route.path) return &route;
  return nullptr;
}

void Api::handle(HttpRequest request, std::shared_ptr<HttpAnswer> answer) {
  const Route* route = route_of(request.path);
  const Answer counted =
      std::make_shared<CountedAnswer>(std::move(answer), metrics_, route ? route->path : "other");
  try {
    if (options_.loopback_only && !names_loopback(request.host))
      throw ApiError(403, "this server answers only requests that name localhost as their Host");
    if (!route && request.path.starts_with("/v1/models/")) {
      std::string tenant;
      check(*route_of("/v1/models"), request, tenant);
      const std::string adapter = adapter_of(request.path.substr(std::string("/v1/models/").size()));
      const std::vector<ServedAdapter> loaded = adapters_->list();
      const auto found = std::find_if(loaded.begin(), loaded.end(),
                                      [&](const ServedAdapter& one) { return one.name == adapter; });
      return counted->reply(json_reply(model_json(found == loaded.end() ? nullptr : &*found)));
    }
    if (!route) throw ApiError(404, "there is no such path", {}, "unknown_url");
    answer_route(*route, std::move(request), counted);
  } catch (const ApiError& error) {
    counted->reply(error.reply());
  }
}

void Api::check(const Route& route, const HttpRequest& request, std::string& tenant) const {
  const bool read_only = std::string_view(route.method) == "GET";
  if (request.method != route.method && !(read_only && request.method == "HEAD"))
    throw ApiError::method_not_allowed(read_only ? "GET, HEAD" : route.method);
  if (!route.open_to_all) {
    const auto known = options_.keys.tenant(request.authorization);
    if (!known)
      throw ApiError(401, "no valid API key was sent: use 'Authorization: Bearer KEY'", {},
                     "invalid_api_key");
    tenant = *known;
  }
}

void Api::answer_route(const Route& route, HttpRequest request, const Answer& answer) {
  std::string tenant;
  check(route, request, tenant);
  if (route.tell) return answer->reply((this->*route.tell)());
  if (!is_json(request.content_type))
    throw ApiError(415, "the body must be sent as 'Content-Type: application/json'");
  if (failed_) throw ApiError(500, "the model failed; the server's log says why");
  if (draining_) throw ApiError(503, "the server is shutting down", {}, "shutting_down");
  prepare(route, std::move(request), tenant, answer);
}

void Api::prepare(const Route& route, HttpRequest request, const std::string& tenant, const Answer& answer) {
  const auto kept = std::make_shared<HttpRequest>(std::move(request));
  const bool queued = preparing_.push([this, &route, kept, tenant, answer] {
    if (answer->gone()) return;
    try {
      (this->*route.read)(*kept, tenant, answer);
    } catch (const ApiError& error) {
      answer->reply(error.reply());
    } catch (const Error& error) {  // of the tokenizer or the chat template
      const bool theirs = exit_code(error.kind()) == 2;
      if (!theirs) Log::get().warn(fmt::format("{}: {}", kept->path, error.detail().message));
      const ApiError told = theirs ? ApiError(400, shown(error.detail().message, 400), error.detail().where)
                                   : ApiError(500, "the server failed; its log says why");
      answer->reply(told.reply());
    } catch (const std::exception& error) {
      Log::get().warn(fmt::format("{}: {}", kept->path, error.what()));
      answer->reply(ApiError(500, "the server failed; its log says why").reply());
    }
  });
  if (!queued) throw ApiError(429, "the server is busy: too many requests wait to be read", {}, "queue_full");
}

std::string Api::adapter_of(const std::string& name) const {
  if (name.empty() || name == model_.name) return {};
  if (std::find(model_.aliases.begin(), model_.aliases.end(), name) != model_.aliases.end()) return {};
  if (adapters_->has(name)) return name;
  throw ApiError(
      404, fmt::format("the model '{}' does not exist; this server has '{}'", shown(name, 200), model_.name),
      "model", "model_not_found");
}

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
  SamplingOptions& sampling = request.sampling;
  sampling.temperature = options.temperature;
  sampling.top_k = options.top_k;
  sampling.top_p = options.top_p;
  sampling.min_p = options.min_p;
  sampling.seed = options.seed ? *options.seed : any_seed();
  sampling.repetition_penalty = options.repetition_penalty;
  sampling.presence_penalty = options.presence_penalty;
  sampling.frequency_penalty = options.frequency_penalty;
  sampling.logit_bias = options.logit_bias;
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

void Api::submit(std::vector<GenerationRequest> requests, CompletionAnswer::Asked asked,
                 const Answer& answer) {
  const std::size_t count = requests.size();
  for (const GenerationRequest& request : requests)
    asked.prompt_tokens.push_back(static_cast<std::int64_t>(request.prompt.size()));
  auto sink = std::make_shared<CompletionAnswer>(std::move(asked), model_, metrics_, answer);
  const std::uint64_t first = engine_.submit(std::move(requests), std::move(sink));
  if (first == EngineThread::kRefused)
    throw ApiError(429, "the server is busy: its queue is full", {}, "queue_full");
  answer->when_gone([engine = &engine_, first, count] { engine->cancel(first, count); });
}

void Api::complete_text(const HttpRequest& request, const std::string& tenant, const Answer& answer) {
  TextRequest text = parse_text_request(request.body, options_.limits);
  const std::string adapter = adapter_of(text.options.model);
  if (options_.log_prompts) Log::get().note("/v1/completions " + Json(request.body).dump());
  CompletionAnswer::Asked asked{false, text.options, {}, {}, {}, {}, request.received, false, adapter};
  std::vector<GenerationRequest> requests;
  std::int64_t scored = 0;
  const auto constraint = constraint_of(text.options);
  for (auto& prompt : text.prompts) {
    const std::string* words = std::get_if<std::string>(&prompt);
    TokenIds ids = words ? encoded(*words, true, "prompt") : std::get<TokenIds>(std::move(prompt));
    if (text.echo) asked.echoes.push_back(words ? *words : model_.tokenizer.decode(ids, true));
    if (text.echo && text.options.logprobs) {
      scored += static_cast<std::int64_t>(ids.size()) * (1 + *text.options.logprobs);
      if (scored > kMostScored)
        throw ApiError(400,
                       fmt::format("log probabilities of more than {} tokens would be told", kMostScored),
                       "prompt");
      asked.first_tokens.push_back(ids.empty() ? 0 : ids.front());
    }
    requests.push_back(generation(text.options, std::move(ids), tenant, false));
    if (text.echo && text.options.logprobs) requests.back().prompt_logprobs = *text.options.logprobs;
    requests.back().constraint = constraint;
    requests.back().adapter = adapter;
  }
  submit(std::move(requests), std::move(asked), answer);
}

void Api::complete_chat(const HttpRequest& request, const std::string& tenant, const Answer& answer) {
  ChatRequest chat = parse_chat_request(request.body, options_.limits);
  const std::string adapter = adapter_of(chat.options.model);
  if (options_.log_prompts) Log::get().note("/v1/chat/completions " + Json(request.body).dump());
  const std::string prompt = rendered(chat.chat);
  TokenIds ids = encoded(prompt, false, "messages");
  std::vector<GenerationRequest> requests;
  if (!chat.forced.empty())
    chat.options.constraint = forced_calls(tool_call_form(prompt), chat.forced, chat.one_call);
  requests.push_back(generation(chat.options, std::move(ids), tenant, true));
  requests.back().constraint = constraint_of(chat.options);
  requests.back().adapter = adapter;
  submit(std::move(requests),
         {true, chat.options, {}, {}, {}, std::move(chat.tools), request.received, chat.one_call, adapter},
         answer);
}

// Names are known to requests as soon as the change is on its way: whatever they ask stands behind it in the
// engine's queue.
void Api::change_adapters(std::function<void(RequestEngine&)> act, const std::string& done,
                          const Answer& answer) {
  const bool queued = engine_.between_steps([act = std::move(act), done, answer](RequestEngine& engine) {
    try {
      act(engine);
      answer->reply({200, "text/plain; charset=utf-8", done, {}});
    } catch (const ApiError& error) {
      answer->reply(error.reply());
    }
  });
  if (!queued) throw ApiError(429, "the server is busy: its queue is full", {}, "queue_full");
}

void Api::load_adapter(const HttpRequest& request, const std::string&, const Answer& answer) {
  if (options_.loading.directory.empty())
    throw ApiError(403, "this server loads no adapters while it runs; --lora-dir switches that on", {},
                   "not_enabled");
  const AdapterRequest asked = parse_load_adapter_request(request.body, options_.limits);
  if (const auto problem = bad_adapter_name(asked.name)) throw ApiError(400, *problem, "lora_name");
  const bool known = adapters_->has(asked.name);
  if (asked.name == model_.name ||
      std::find(model_.aliases.begin(), model_.aliases.end(), asked.name) != model_.aliases.end())
    throw ApiError(400, fmt::format("'{}' is the name of the model", asked.name), "lora_name");
  if (known && !asked.in_place)
    throw ApiError(
        400,
        fmt::format("the adapter '{}' is loaded already; unload it first, or say load_inplace", asked.name),
        "lora_name");
  if (!known && adapters_->size() >= options_.loading.most)
    throw ApiError(
        400, fmt::format("{} adapters are loaded, and no more may be; unload one", options_.loading.most),
        "lora_name", "too_many_adapters");
  const auto adapter = std::make_shared<const LoraAdapter>(
      options_.loading.open(adapter_below(options_.loading.directory, asked.path)));
  const auto replaced =
      adapters_->put({asked.name, asked.path, static_cast<std::int64_t>(std::time(nullptr))});
  try {
    change_adapters(
        [names = adapters_, name = asked.name, adapter](RequestEngine& engine) {
          try {
            engine.load_adapter(name, *adapter);
          } catch (const std::exception& error) {
            names->remove(name);
            engine.unload_adapter(name);
            Log::get().warn(fmt::format("{}: {}", name, error.what()));
            throw ApiError(500, "the adapter could not be loaded; the server's log says why");
          }
        },
        fmt::format("Success: LoRA adapter '{}' added successfully.", asked.name), answer);
  } catch (const ApiError&) {
    if (replaced)
      adapters_->put(*replaced);
    else
      adapters_->remove(asked.name);
    throw;
  }
}

void Api::unload_adapter(const HttpRequest& request, const std::string&, const Answer& answer) {
  if (options_.loading.directory.empty())
    throw ApiError(403, "this server changes no adapters while it runs; --lora-dir switches that on", {},
                   "not_enabled");
  const std::string name = parse_unload_adapter_request(request.body, options_.limits);
  if (!adapters_->has(name))
    throw ApiError(404, fmt::format("the adapter '{}' is not loaded", shown(name, 200)), "lora_name",
                   "model_not_found");
  change_adapters([name](RequestEngine& engine) { engine.unload_adapter(name); },
                  fmt::format("Success: LoRA adapter '{}' removed successfully.", name), answer);
  adapters_->remove(name);
}

void Api::tokenize(const HttpRequest& request, const std::string&, const Answer& answer) {
  const TokenizeRequest asked = parse_tokenize_request(request.body, options_.limits);
  const TokenIds ids =
      encoded(asked.prompt ? *asked.prompt : rendered(asked.chat), asked.add_special_tokens, "prompt");
  Json list = Json::array();
  for (const std::int32_t id : ids) list.push_back(id);
  answer->reply(json_reply(Json::object({{"count", static_cast<std::int64_t>(ids.size())},
                                         {"max_model_len", model_.max_model_len},
                                         {"tokens", std::move(list)}})));
}

void Api::detokenize(const HttpRequest& request, const std::string&, const Answer& answer) {
  const TokenIds ids = parse_detokenize_request(request.body, options_.limits);
  answer->reply(json_reply(Json::object({{"prompt", model_.tokenizer.decode(ids)}})));
}

HttpReply Api::page() const {
  return {200,
          "text/html; charset=utf-8",
          kPage,
          {{"Content-Security-Policy",
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}}};
}

HttpReply Api::health() const {
  if (failed_) return ApiError(500, "the model failed; the server's log says why").reply();
  return json_reply(Json::object({{"status", "ok"}}));
}

HttpReply Api::ready() const {
  if (failed_ || draining_)
    return ApiError(503, failed_ ? "the model failed" : "the server is shutting down").reply();
  return json_reply(Json::object({{"status", "ready"}}));
}

Json Api::model_json(const ServedAdapter* adapter) const {
  Json model = Json::object({{"id", adapter ? adapter->name : model_.name},
                             {"object", "model"},
                             {"created", adapter ? adapter->created : model_.created},
                             {"owned_by", "llmq"},
                             {"max_model_len", model_.max_model_len}});
  if (!adapter) return model;
  model["root"] = adapter->root;
  model["parent"] = model_.name;
  return model;
}

HttpReply Api::models() const {
  Json list = Json::array({model_json(nullptr)});
  for (const ServedAdapter& adapter : adapters_->list()) list.push_back(model_json(&adapter));
  return json_reply(Json::object({{"object", "list"}, {"data", std::move(list)}}));
}

HttpReply Api::metrics_text() const {
  return {200, "text/plain; version=0.0.4; charset=utf-8", metrics_.text(connections_()), {}};
}
HttpReply Api::version() const { return json_reply(options_.version); }
HttpReply Api::no_embeddings() const {
  return ApiError(501, "this server has no embeddings: it serves a model that writes text", {},
                  "not_implemented")
      .reply();
}

}  // namespace llmq

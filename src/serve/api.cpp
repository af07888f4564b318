#include "serve/api.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "serve/api_error.h"
#include "serve/page.h"

namespace llmq {
namespace {

// Counts the status that an answer gets.
class CountingResponder : public HttpResponder {
 public:
  CountingResponder(std::shared_ptr<HttpResponder> responder, Metrics& metrics, std::string path)
      : responder_(std::move(responder)), metrics_(metrics), path_(std::move(path)) {}
  void reply(HttpReply reply) override {
    metrics_.http(path_, reply.status);
    responder_->reply(std::move(reply));
  }
  void open_stream(const std::string& content_type) override {
    metrics_.http(path_, 200);
    responder_->open_stream(content_type);
  }
  void write(std::string text) override { responder_->write(std::move(text)); }
  void end() override { responder_->end(); }
  bool gone() const override { return responder_->gone(); }
  void when_gone(std::function<void()> act) override { responder_->when_gone(std::move(act)); }

 private:
  std::shared_ptr<HttpResponder> responder_;
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

// A name in a path, where clients may write any byte as %XX (RFC 3986, 2.1); what is no such escape stays,
// and so does %00, which is in no name.
std::string unescaped(std::string_view path) {
  std::string name;
  for (std::size_t i = 0; i < path.size(); ++i) {
    unsigned value = 0;
    const char* const end = path.data() + std::min(path.size(), i + 3);
    if (path[i] == '%' && end - path.data() == static_cast<std::ptrdiff_t>(i + 3) &&
        std::from_chars(path.data() + i + 1, end, value, 16).ptr == end && value != 0) {
      name += static_cast<char>(value);
      i += 2;
    } else {
      name += path[i];
    }
  }
  return name;
}

}  // namespace

bool names_loopback(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, host.find(']')) == "[::1";
  host = host.substr(0, host.find(':'));
  return host == "localhost" ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string_view::npos);
}

// A path reads a body (`read`, on the preparing thread) or none (`tell`, at once); `tell_of` is told what
// stands behind a path that ends with a slash.
struct Api::Route {
  const char* path;
  const char* method;
  bool open_to_all;  // without a key
  void (Api::*read)(const HttpRequest&, const std::string&, const Responder&);
  HttpReply (Api::*tell)() const;
  HttpReply (Api::*tell_of)(const std::string& name) const = nullptr;
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
      {"/v1/models/", "GET", false, nullptr, nullptr, &Api::model},
      {"/metrics", "GET", false, nullptr, &Api::metrics_text},
      {"/tokenizer_info", "GET", false, nullptr, &Api::tokenizer_info},
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
    if (path == route.path || (route.tell_of && path.starts_with(route.path))) return &route;
  return nullptr;
}

void Api::handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) {
  const Route* route = route_of(request.path);
  const Responder counted =
      std::make_shared<CountingResponder>(std::move(responder), metrics_, route ? route->path : "other");
  const Json fields = log_fields(request);
  try {
    if (options_.loopback_only && !names_loopback(request.host))
      throw ApiError(
          403,
          "this server answers only requests that name localhost as their Host: a proxy sends that, or "
          "--host is another address");
    if (!route) throw ApiError(404, "there is no such path", {}, "unknown_url");
    answer_route(*route, std::move(request), counted);
  } catch (const ApiError& error) {
    error.log(route ? route->path : "another path", fields);
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

void Api::answer_route(const Route& route, HttpRequest request, const Responder& responder) {
  std::string tenant;
  check(route, request, tenant);
  if (route.tell) return responder->reply((this->*route.tell)());
  if (route.tell_of)
    return responder->reply((this->*route.tell_of)(unescaped(request.path.substr(std::strlen(route.path)))));
  if (!is_json(request.content_type))
    throw ApiError(415, "the body must be sent as 'Content-Type: application/json'");
  if (draining_) throw ApiError(503, "the server is shutting down", {}, "shutting_down");
  prepare(route, std::move(request), tenant, responder);
}

void Api::prepare(const Route& route, HttpRequest request, const std::string& tenant,
                  const Responder& responder) {
  const auto kept = std::make_shared<HttpRequest>(std::move(request));
  const bool queued = preparing_.push([this, &route, kept, tenant, responder] {
    if (responder->gone()) return;
    const auto refuse = [&](const ApiError& error) {
      error.log(route.path, log_fields(*kept));
      responder->reply(error.reply());
    };
    const auto fail_with = [&](const char* why) {
      Log::get().warn(fmt::format("{} {}: {}", kept->id, route.path, why), log_fields(*kept));
      refuse(ApiError(500, "the server failed; its log says why"));
    };
    try {
      (this->*route.read)(*kept, tenant, responder);
    } catch (const ApiError& error) {
      refuse(error);
    } catch (const Error& error) {  // of the tokenizer or the chat template
      if (exit_code(error.kind()) != 2) return fail_with(error.detail().message.c_str());
      refuse(ApiError(400, excerpt(error.detail().message, 400), error.detail().where));
    } catch (const std::exception& error) {
      fail_with(error.what());
    }
  });
  if (!queued) throw ApiError(429, "the server is busy: too many requests wait to be read", {}, "queue_full");
}

std::string Api::adapter_of(const std::string& name) const {
  if (name.empty() || model_.answers_to(name)) return {};
  if (adapters_->has(name)) return name;
  throw ApiError(
      404,
      fmt::format("the model '{}' does not exist; this server has '{}'", excerpt(name, 200), model_.name),
      "model", "model_not_found");
}

Json Api::log_fields(const HttpRequest& request) {
  Json fields = Json::object({{"request_id", request.id}});
  if (!request.trace.trace_id.empty()) fields["trace_id"] = request.trace.trace_id;
  return fields;
}

HttpReply Api::json_reply(const Json& body) { return {200, "application/json", body.dump(), {}}; }

HttpReply Api::page() const {
  return {200,
          "text/html; charset=utf-8",
          kPage,
          {{"Content-Security-Policy",
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}}};
}

HttpReply Api::health() const { return json_reply(Json::object({{"status", "ok"}})); }

HttpReply Api::ready() const {
  if (draining_) return ApiError(503, "the server is shutting down").reply();
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

HttpReply Api::model(const std::string& name) const {
  const std::string adapter = adapter_of(name);
  const std::vector<ServedAdapter> loaded = adapters_->list();
  const auto found = std::find_if(loaded.begin(), loaded.end(),
                                  [&](const ServedAdapter& one) { return one.name == adapter; });
  return json_reply(model_json(found == loaded.end() ? nullptr : &*found));
}

HttpReply Api::metrics_text() const {
  return {200, "text/plain; version=0.0.4; charset=utf-8", metrics_.text(connections_()), {}};
}
HttpReply Api::version() const { return json_reply(options_.version); }
HttpReply Api::tokenizer_info() const { return json_reply(model_.tokenizer_info); }
HttpReply Api::no_embeddings() const {
  return ApiError(501, "this server has no embeddings: it serves a model that writes text", {},
                  "not_implemented")
      .reply();
}

}  // namespace llmq

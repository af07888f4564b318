// The paths of the server: who may ask what, and the way of a request from its body to the engine and back.
//
// handle() runs on the thread of the connections and does there only what takes microseconds. Bodies are
// parsed, chats rendered and texts tokenized on one thread of their own, whose queue is limited; the engine
// has another.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "http/exchange.h"
#include "serve/api_keys.h"
#include "serve/completion_sink.h"
#include "serve/served_adapters.h"
#include "serve/work_queue.h"

namespace llmq {

struct ApiOptions {
  ApiKeys keys;
  RequestLimits limits;
  // requests must name the loopback interface as their Host: no web page elsewhere can ask
  bool loopback_only = true;
  bool log_prompts = false;
  std::size_t max_preparing = 256;      // requests whose bodies wait to be read
  Json version;                         // what /version says
  std::vector<ServedAdapter> adapters;  // that the engine has when the server begins
  AdapterLoading loading;
};

class Api {
 public:
  // All that is given by reference lives longer.
  Api(const ServedModel& model, ApiOptions options, Metrics& metrics, EngineThread& engine,
      std::function<HttpCounters()> connections);
  void handle(HttpRequest request, std::shared_ptr<HttpResponder> responder);
  void begin_drain() { draining_ = true; }  // no new answers

 private:
  struct Route;
  using Responder = std::shared_ptr<HttpResponder>;
  void answer_route(const Route& route, HttpRequest request, const Responder& responder);
  void check(const Route& route, const HttpRequest& request, std::string& tenant) const;
  void prepare(const Route& route, HttpRequest request, const std::string& tenant,
               const Responder& responder);

  // Each reads a body and sees to its answer; ApiError and Error become replies.
  void complete_text(const HttpRequest& request, const std::string& tenant, const Responder& responder);
  void complete_chat(const HttpRequest& request, const std::string& tenant, const Responder& responder);
  void tokenize(const HttpRequest& request, const std::string& tenant, const Responder& responder);
  void detokenize(const HttpRequest& request, const std::string& tenant, const Responder& responder);
  void load_adapter(const HttpRequest& request, const std::string& tenant, const Responder& responder);
  void unload_adapter(const HttpRequest& request, const std::string& tenant, const Responder& responder);
  // These read none.
  HttpReply page() const;
  HttpReply health() const;
  HttpReply ready() const;
  HttpReply models() const;
  HttpReply model(const std::string& name) const;
  HttpReply metrics_text() const;
  HttpReply version() const;
  HttpReply tokenizer_info() const;
  HttpReply no_embeddings() const;

  static const std::vector<Route>& routes();
  const Route* route_of(const std::string& path) const;
  static HttpReply json_reply(const Json& body);
  static Json log_fields(const HttpRequest& request);  // what a line of the log says of whose it is
  // Of the model that a request names, or ApiError 404: empty for the model alone.
  std::string adapter_of(const std::string& name) const;
  Json model_json(const ServedAdapter* adapter) const;
  void change_adapters(std::function<void(RequestEngine&)> act, const std::string& done,
                       const Responder& responder);
  std::string rendered(const Json& chat) const;
  TokenIds encoded(const std::string& text, bool special, const std::string& field) const;
  GenerationRequest generation(const AnswerOptions& options, TokenIds prompt, const std::string& tenant,
                               bool chat) const;
  std::shared_ptr<const Constraint> constraint_of(const AnswerOptions& options);  // on the preparing thread
  void log_prompt(const HttpRequest& request) const;
  void submit(std::vector<GenerationRequest> requests, CompletionSink::Asked asked,
              const Responder& responder);

  const ServedModel& model_;
  ApiOptions options_;
  Metrics& metrics_;
  EngineThread& engine_;
  std::function<HttpCounters()> connections_;
  std::size_t most_prompt_bytes_;
  // changed on the preparing thread, and by the engine's, which may outlive this, where one could not be
  // loaded
  std::shared_ptr<ServedAdapters> adapters_;
  std::shared_ptr<const TokenPieces> pieces_;  // made for the first constrained answer
  std::atomic<bool> draining_{false};
  WorkQueue preparing_;  // last: its thread uses all of the above
};

// Whether a Host header names this machine's loopback interface.
bool names_loopback(std::string_view host);

}  // namespace llmq

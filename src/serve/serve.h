// A model, an engine and options become a server.
#pragma once
#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "http/server.h"
#include "serve/api.h"
#include "serve/quality_probe.h"

namespace llmq {

struct ServeOptions {
  std::string host = "127.0.0.1";
  int port = 8000;
  HttpLimits http;
  ApiOptions api;
  std::size_t max_queue = 1024;  // requests between the connections and the engine
  bool vllm_names = false;
  ProbeOptions probe;
  double drain_seconds = 30;
  // where it can be: ends the server in the place of SIGTERM and SIGINT, which are left alone
  std::stop_token stop;
};

enum class ServeEnd { kDrained, kCutOff, kFailed };

// Serves until SIGTERM, SIGINT or options.stop (kDrained when every answer under way was given, kCutOff when
// not), or until the engine fails. `listening` is told the port. The engine is used on a thread of its own
// until this returns.
ServeEnd serve(const ServedModel& model, RequestEngine& engine, const ServeOptions& options,
               const std::function<void(int port)>& listening);

}  // namespace llmq

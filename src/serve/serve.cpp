#include "serve/serve.h"

#include <atomic>

#include "base/log.h"
#include "serve/api_error.h"

namespace llmq {

ServeEnd serve(const ServedModel& model, RequestEngine& engine, const ServeOptions& options,
               const std::function<void(int port)>& listening) {
  const bool has_adapters = !options.api.adapters.empty() || !options.api.loading.directory.empty();
  Metrics metrics({model.name, options.vllm_names, has_adapters ? options.api.loading.most : 0});
  std::atomic<bool> failed{false};
  // Answers hold connections, so what makes answers is gone before the server is.
  HttpServer http(options.host, options.port, options.http, [](const HttpRefusal& refusal) {
    return ApiError(refusal.status(), refusal.what(), {}, refusal.code()).reply();
  });
  EngineThread thread(engine, options.max_queue, metrics, [&](const std::string& message) {
    Log::get().warn("the model failed, and the server ends: " + message);
    failed = true;
    http.stop_soon();
  });
  ApiOptions api_options = options.api;
  api_options.loopback_only = http.on_loopback();
  Api served(model, std::move(api_options), metrics, thread, [&] { return http.counters(); });
  std::optional<QualityProbe> probe;
  if (options.probe.interval_seconds > 0) probe.emplace(options.probe, model, thread, metrics);
  if (!http.on_loopback() && !options.api.keys.required())
    Log::get().warn("everyone who reaches this address may use the model: give --api-key-file");
  const std::stop_callback stop(options.stop, [&] { http.stop_soon(); });
  if (!options.stop.stop_possible()) http.end_by_signal();
  listening(http.port());
  const bool whole = http.run(
      [&](HttpRequest request, std::shared_ptr<HttpResponder> answer) {
        served.handle(std::move(request), std::move(answer));
      },
      options.drain_seconds,
      [&] {
        if (!options.stop.stop_possible()) Log::get().note("finishing the answers under way");
        served.begin_drain();
      });
  if (failed) return ServeEnd::kFailed;
  return whole ? ServeEnd::kDrained : ServeEnd::kCutOff;
}

}  // namespace llmq

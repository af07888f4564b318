// How adapters are loaded and unloaded while the server runs.
#include <fmt/core.h>

#include <ctime>

#include "base/error.h"
#include "base/log.h"
#include "serve/api.h"
#include "serve/api_error.h"

namespace llmq {

// The names change before the engine is told: whatever asks for a new one stands behind its adapter in the
// engine's queue, and whoever is told that one has left finds it nowhere.
void Api::change_adapters(std::function<void(RequestEngine&)> act, const std::string& done,
                          const Responder& responder) {
  const bool queued = engine_.between_steps([act = std::move(act), done, responder](RequestEngine& engine) {
    try {
      act(engine);
      responder->reply({200, "text/plain; charset=utf-8", done, {}});
    } catch (const ApiError& error) {
      responder->reply(error.reply());
    }
  });
  if (!queued) throw ApiError(429, "the server is busy: its queue is full", {}, "queue_full");
}

void Api::load_adapter(const HttpRequest& request, const std::string&, const Responder& responder) {
  if (options_.loading.directory.empty())
    throw ApiError(403, "this server loads no adapters while it runs; --lora-dir switches that on", {},
                   "not_enabled");
  const AdapterRequest asked = parse_load_adapter_request(request.body, options_.limits);
  if (const auto problem = bad_adapter_name(asked.name)) throw ApiError(400, *problem, "lora_name");
  const bool known = adapters_->has(asked.name);
  if (model_.answers_to(asked.name))
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
        [names = adapters_, name = asked.name, adapter, fields = log_fields(request)](RequestEngine& engine) {
          try {
            engine.load_adapter(name, *adapter);
          } catch (const std::exception& error) {
            names->remove(name);
            engine.unload_adapter(name);
            Log::get().warn(fmt::format("{}: {}", name, error.what()), fields);
            throw ApiError(500, "the adapter could not be loaded; the server's log says why");
          }
        },
        fmt::format("Success: LoRA adapter '{}' added successfully.", asked.name), responder);
  } catch (const ApiError&) {
    if (replaced)
      adapters_->put(*replaced);
    else
      adapters_->remove(asked.name);
    throw;
  }
}

void Api::unload_adapter(const HttpRequest& request, const std::string&, const Responder& responder) {
  if (options_.loading.directory.empty())
    throw ApiError(403, "this server changes no adapters while it runs; --lora-dir switches that on", {},
                   "not_enabled");
  const std::string name = parse_unload_adapter_request(request.body, options_.limits);
  const auto removed = adapters_->remove(name);
  if (!removed)
    throw ApiError(404, fmt::format("the adapter '{}' is not loaded", excerpt(name, 200)), "lora_name",
                   "model_not_found");
  try {
    change_adapters([name](RequestEngine& engine) { engine.unload_adapter(name); },
                    fmt::format("Success: LoRA adapter '{}' removed successfully.", name), responder);
  } catch (const ApiError&) {
    adapters_->put(*removed);
    throw;
  }
}

}  // namespace llmq

// A model made ready to be served: what `llmq serve` and `llmq bench --suite serve` share.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "job/loaded_model.h"
#include "runtime/serving_engine.h"
#include "serve/serve.h"
#include "tools/serving_room.h"

namespace llmq::tools {

class PreparedServer {
 public:
  struct NamedAdapter {
    ServedAdapter served;
    LoraAdapter adapter;
  };
  // Opens everything, and then loads. Error(kUsage) where the cache that was asked for does not hold one
  // context.
  PreparedServer(const EngineFlags& flags, const GlobalOptions& globals, Compute compute);

  const LoadedModel& model() const { return model_; }
  const ServedModel& served() const { return served_; }
  const Room& room() const { return room_; }
  Backend& backend() const { return *placement_.backend; }
  const Engine& engine() const { return engine_; }
  // Once: `options` with the limits that follow from the model, on a thread of the caller's choice.
  ServeEnd serve(ServeOptions options, const std::function<void(int port)>& listening);

 private:
  EngineFlags flags_;
  LoadedModel model_;
  std::optional<LoadedModel> draft_;
  Room room_;
  Placement placement_;
  ServedModel served_;
  std::vector<NamedAdapter> opened_;  // until they are loaded
  Engine engine_;
  std::vector<ServedAdapter> adapters_;
  std::unique_ptr<Drafter> drafter_;
  ServingEngine answers_;
};

}  // namespace llmq::tools

#include <utility>

#include "serve/engine_thread.h"

namespace llmq {
namespace {

class AdaptedEngine : public RequestEngine {
 public:
  explicit AdaptedEngine(ServingEngine& engine) : engine_(engine) {}
  std::optional<GenerationRefusal> submit(GenerationRequest request) override {
    return engine_.submit(std::move(request));
  }
  void cancel(std::uint64_t id) override { engine_.cancel(id); }
  const std::vector<GenerationEvent>& step() override { return engine_.step(); }
  const std::vector<std::uint64_t>& started() const override { return engine_.started(); }
  bool idle() const override { return engine_.idle(); }
  const ServingStatistics& statistics() override { return engine_.statistics(); }
  void load_adapter(const std::string& name, const LoraAdapter& adapter) override {
    engine_.load_adapter(name, adapter);
  }
  void unload_adapter(const std::string& name) override { engine_.unload_adapter(name); }

 private:
  ServingEngine& engine_;
};

}  // namespace

std::unique_ptr<RequestEngine> request_engine(ServingEngine& engine) {
  return std::make_unique<AdaptedEngine>(engine);
}

}  // namespace llmq

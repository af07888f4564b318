#include "job/run_adapter.h"

#include <fmt/core.h>

#include <memory>
#include <optional>
#include <utility>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/log.h"
#include "export/adapter_fold.h"
#include "job/recorded_job.h"
#include "model/packed/unpacked.h"

namespace llmq {
namespace {

// The method that moved scales from the inputs of linears into their weights: by the manifest, or of somebody
// else's checkpoint by its format.
std::optional<std::string> rescaled_by(const Checkpoint& checkpoint) {
  if (!system_io().exists(manifest_path(checkpoint.path()))) {
    const Json* quantized = checkpoint.config().find("quantization_config");
    const Json* format = quantized ? quantized->find("quant_method") : nullptr;
    return format && *format == Json("awq") ? std::optional<std::string>("AWQ") : std::nullopt;
  }
  const std::optional<ProvenanceFacts> facts = facts_beside(checkpoint);
  const Json* const methods = facts ? facts->recipe.find("method") : nullptr;
  if (methods == nullptr || !methods->is_array()) return std::nullopt;
  for (const Json& one : methods->items()) {
    if (one == Json("awq")) return "AWQ";
    if (one == Json("smoothquant")) return "SmoothQuant";
  }
  return std::nullopt;
}

}  // namespace

LoraAdapter open_adapter(const LoadedModel& model, const Path& directory, std::int64_t max_rank, Io& io) {
  LoraAdapter adapter = LoraAdapter::open(io, directory, model.spec);
  if (adapter.rank() > max_rank)
    fail(ErrorKind::kUsage,
         {fmt::format("the adapter has rank {}, and no more than {} are allowed", adapter.rank(), max_rank),
          directory.string(), "--max-lora-rank", "raise it"});
  Log::get().note(fmt::format("adapter {}: {} linears of rank up to {}, {}", directory.string(),
                              adapter.linears(), adapter.rank(),
                              bytes_text(static_cast<std::uint64_t>(adapter.values()) * sizeof(float))));
  const auto warn = [&](const std::string& changed) {
    Log::get().warn(
        fmt::format("adapter {}: {} what linears of {} read, so it fits only if it was trained on this "
                    "checkpoint; one of the original model is quantized with that (adapter in a recipe)",
                    directory.string(), changed, model.name));
  };
  if (const auto method = rescaled_by(model.checkpoint))
    warn(*method + " rescaled");
  else if (has_rotated_values(model.checkpoint))
    warn("a rotation changed");
  return adapter;
}

LoadedModel open_to_round(Io& io, const std::string& model, const std::string& adapter) {
  return adapter.empty() ? open_unpacked_model(io, model) : open_model(io, model);
}

void fold_adapter(Io& io, const std::string& directory, LoadedModel& model) {
  if (directory.empty()) return;
  LoraAdapter adapter = open_adapter(model, directory, INT64_MAX, io);
  model.adapter = FoldedAdapter{directory, adapter.rank(), adapter.linears(), adapter.bytes_of_opening()};
  model.checkpoint =
      folded(std::make_shared<const AdapterFold>(std::move(adapter), unpacked(model.checkpoint), model.spec));
}

}  // namespace llmq

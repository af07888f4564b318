#include "job/run_adapter.h"

#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/log.h"
#include "export/adapter_fold.h"
#include "job/recorded_job.h"
#include "model/packed/unpacked.h"

namespace llmq {
LoraAdapter open_adapter(const LoadedModel& model, const Path& directory, std::int64_t max_rank, Io& io) {
  LoraAdapter adapter = LoraAdapter::open(io, directory, model.spec);
  if (adapter.rank() > max_rank)
    fail(ErrorKind::kUsage,
         {fmt::format("the adapter has rank {}, and no more than {} are allowed", adapter.rank(), max_rank),
          directory.string(), "--max-lora-rank", "raise it"});
  Log::get().note(fmt::format("adapter {}: {} linears of rank up to {}, {}", directory.string(),
                              adapter.linears(), adapter.rank(),
                              bytes_text(static_cast<std::uint64_t>(adapter.values()) * sizeof(float))));
  if (const std::vector<std::string> changes = changes_of_linears(model.checkpoint); !changes.empty())
    Log::get().warn(
        fmt::format("adapter {}: {} changed what linears of {} read, so it fits only if it was trained on "
                    "this checkpoint; one of the original model is quantized with that (adapter in a recipe)",
                    directory.string(), fmt::join(changes, " and "), model.name));
  return adapter;
}

// Tensors are held against config.json as they lie.
LoadedModel open_to_round(Io& io, const std::string& model, const std::string& adapter) {
  LoadedModel opened = open_model(io, model);
  opened.changed_before = changes_of_linears(opened.checkpoint);
  if (adapter.empty()) opened.checkpoint = unpacked(opened.checkpoint);
  return opened;
}

void fold_adapter(Io& io, const std::string& directory, LoadedModel& model) {
  if (directory.empty()) return;
  LoraAdapter adapter = open_adapter(model, directory, INT64_MAX, io);
  model.adapter = FoldedAdapter{directory, adapter.rank(), adapter.linears(), adapter.bytes_of_opening()};
  model.checkpoint =
      folded(std::make_shared<const AdapterFold>(std::move(adapter), unpacked(model.checkpoint), model.spec));
}

}  // namespace llmq

// A LoRA adapter opened to run beside a model, or to be folded into it, and what the user should know of it.
#pragma once
#include <cstdint>

#include "job/loaded_model.h"
#include "model/adapters/lora_adapter.h"

namespace llmq {

// Notes its size, and warns where the weights of the model were rescaled since the adapter may have been
// trained. Error(kUsage) where a rank is above `max_rank`; else those of LoraAdapter::open.
LoraAdapter open_adapter(const LoadedModel& model, const Path& directory, std::int64_t max_rank = INT64_MAX,
                         Io& io = system_io());

// The model that a recipe with this adapter rounds: as numbers (model/packed/unpacked.h), or as it lies where
// fold_adapter() makes numbers of it, so that open_adapter() sees whose codes they were.
LoadedModel open_to_round(Io& io, const std::string& model, const std::string& adapter);

// The model as numbers (model/packed/unpacked.h) with the adapter in its linears (export/adapter_fold.h), for
// who rounds them; as it is where `directory` is empty. Errors as LoraAdapter::open() and AdapterFold.
void fold_adapter(Io& io, const std::string& directory, LoadedModel& model);

}  // namespace llmq

// A LoRA adapter opened to run beside a model, and what the user should know of it.
#pragma once
#include <cstdint>

#include "job/loaded_model.h"
#include "model/adapters/lora_adapter.h"

namespace llmq {

// Notes its size, and warns where the weights of the model were rescaled since the adapter may have been
// trained. Error(kUsage) where a rank is above `max_rank`; else those of LoraAdapter::open.
LoraAdapter open_adapter(const LoadedModel& model, const Path& directory, std::int64_t max_rank = INT64_MAX);

}  // namespace llmq

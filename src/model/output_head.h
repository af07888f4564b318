// The weight that turns the last hidden states into logits, as a backend holds it.
#pragma once
#include <memory>

#include "device/backend.h"
#include "model/linear_source.h"

namespace llmq {

// Packed, stored or tied to the embedding. Values that are not finite are refused by name, but for a tied
// head's, which are looked at where the embedding is read.
std::unique_ptr<PreparedWeight> prepare_head(Backend& backend, Compute compute, const LinearSource& source,
                                             const ModelSpec& spec);

}  // namespace llmq

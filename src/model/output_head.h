// The weight that turns the last hidden states into logits, as a backend holds it.
#pragma once
#include <memory>

#include "device/backend.h"
#include "model/linear_source.h"

namespace llmq {

// Packed, stored or tied to the embedding. Values that are not finite are refused by name, but for a tied
// head's, which are looked at where the embedding is read.
//
// kInt8: a dense head is rounded to signed 8-bit codes here, a BF16 scale for each group of 128, 64 or 32
// columns (whichever divides a row; else one per row), because a head of a small model is most of what a
// decoded token reads.
enum class HeadWeight : std::uint8_t { kStored, kInt8 };
std::unique_ptr<PreparedWeight> prepare_head(Backend& backend, Compute compute, const LinearSource& source,
                                             const ModelSpec& spec, HeadWeight as = HeadWeight::kStored);

}  // namespace llmq

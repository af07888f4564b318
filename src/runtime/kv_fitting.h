// Bases for packed pages (model/kv_basis.h), fitted on a text that the model reads once with plain pages.
//
// Keys and queries turn with their position, so the text is cut into pieces that stand all over the context
// for the statistics. Every block is fitted with the heads and the width that it has. Takes one pass over the
// text and an eigenproblem per KV head and layer; the pieces' activations and one layer's pages are resident.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "model/run_sublayer.h"

namespace llmq {

// `hidden` F32 [ids, hidden_size], on each member: the embedded text; it is changed. `blocks` by block, then
// by member: every one gets its basis. Error(kBadInput) where keys, values or queries are not finite.
void fit_kv_bases(std::span<const ForwardContext> members, std::span<std::vector<BlockWeights>> blocks,
                  std::span<const TensorView> hidden, Exchange& exchange);

}  // namespace llmq

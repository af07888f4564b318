// The tensors that a run does not quantize: norms, biases, embedding, head, linears left alone. Of several
// ranks each looks at those in its own shards, and writes them.
#pragma once
#include <cstdint>

#include "quant/pipeline/quantize_run.h"

namespace llmq {

// The disk reads, in the order in which they are looked at, those that check_dense() copies.
void read_dense_ahead(const QuantizeRun& run);
// Looks at all of them, before the first hour of work and not after the last, and copies those that no fold
// can change. Error(kBadInput) naming one that is not finite; where that is allowed, warnings at rank 0, in
// the order of the tensors. Of all ranks.
void check_dense(QuantizeRun& run);
// Everything that was not packed, that no fold changed and that was not copied at the start.
void write_dense(QuantizeRun& run);

}  // namespace llmq

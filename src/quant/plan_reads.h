// What a plan reads of the checkpoint, pass by pass, in whole blocks of the disk, as the Io layer counts it.
//
// Tensors of at most 64 KiB are read once. A pass reads nothing twice, except that two tensors, or two bands of one, may share a block.
#pragma once
#include "quant/plan.h"

namespace llmq {

// Of a run that goes on behind `finished` blocks. Weights that are not finite and stay (--allow-nonfinite) are read once more.
std::vector<ReadPass> read_passes(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec,
                                  std::int64_t finished = 0);
std::uint64_t total_bytes(const std::vector<ReadPass>& passes);
Json reads_json(const std::vector<ReadPass>& passes);  // [{what, bytes}]

// What leases hold of the checkpoint at a time, where that is memory of the process (Reading::kDirect); else 0.
std::uint64_t held_bytes(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec);

}  // namespace llmq

// What a plan reads of the checkpoint, pass by pass, in whole blocks of the disk, as the Io layer counts it.
//
// Tensors of at most 64 KiB are read once. A pass reads nothing twice, except that two tensors, or two bands
// of one, may share a block.
#pragma once
#include <set>
#include <string>

#include "quant/plan/plan_costs.h"

namespace llmq {

// What an interrupted run left to one that goes on behind it.
struct DoneBefore {
  std::int64_t blocks = 0;  // finished
  bool measured = false;    // mixed precision's pass
};
// Weights that are not finite and stay (--allow-nonfinite) are read once more.
std::vector<ReadPass> read_passes(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec,
                                  const DoneBefore& before = {});
// The table's rows of calibration samples, every `stride`th chunk of them: at most, where a token comes
// again. Within a chunk nothing is read twice.
std::uint64_t embedding_row_reads(const Checkpoint& checkpoint, const ModelSpec& spec,
                                  std::int64_t chunk_tokens, std::int64_t samples, std::int64_t length,
                                  std::int64_t stride = 1);

// What leases hold of the checkpoint at a time, where that is memory of the process (Reading::kDirect); else
// 0. `whole`: tensors of which not only a band is held; `embedded`: tokens whose rows are.
std::uint64_t held_bytes(const Checkpoint& checkpoint, const ModelSpec& spec,
                         const std::set<std::string>& whole, std::int64_t embedded);
std::uint64_t held_bytes(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec);

}  // namespace llmq

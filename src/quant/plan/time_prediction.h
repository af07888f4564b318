// How long a plan will take on this machine: one block of the model run for two seconds, scaled to all of
// them.
//
// The pipeline's own code runs over the block with most quantized linears on made-up tokens
// (quant/plan/block_timing.h), on one chunk of samples and on two, or on all where there are fewer:
//
//   t(part, T) = a + b T        T: the tokens that the part runs over, all or those of a search or of the
//                               original model
//
// A block of more than 4 M weights is cut down to a share of its width (quant/plan/block_slice.h), and to
// half of that, with x the square root of the share of its weights:
//
//   t(part, x) = c x^p + d x^(p+1)      c, d >= 0; p = 1 for parts that go over tokens or weights (attention
//                                       and norms; products), 2 for those of N K and N K^2 operations for
//                                       each linear
//
// Reading and writing: bytes at the rate of a piece of the checkpoint, and of a file of 16 MiB, and two syncs
// for each block; what the disk reads while the block before is worked on takes no time of its own.
//
// The figures hold for an otherwise idle machine, and for a checkpoint as far in the page cache as it is now.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/io.h"
#include "device/backend.h"
#include "io/checkpoint.h"
#include "quant/plan/block_timing.h"
#include "quant/plan/plan_costs.h"

namespace llmq {

// What time_block() finds for the only block of `one`, over so many samples of the plan.
using BlockTimer =
    std::function<SecondsByPart(const Checkpoint& checkpoint, const ModelSpec& one, std::int64_t samples)>;
// The parts of all blocks over all samples, by what a timer says of one.
SecondsByPart predict_blocks(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec,
                             const BlockTimer& timer);

struct TimePrediction {
  double seconds = 0, probe_seconds = 0;
  SecondsByPart parts;  // named as run_pipeline() names them; all positive
  std::string unknown;  // why there is no prediction: what the block said that was tried
  void add(const std::string& part, double found) {
    parts.emplace_back(part, found);
    seconds += found;
  }
  Json to_json() const;
};

// Seconds for each byte that is written, for each that is synced, and for a sync of next to nothing.
struct WritingRates {
  double given = 0, synced = 0, sync = 0;
};
WritingRates writing_rates(Io& io, const Path& directory);

// Memory while it probes: less than the run's. `directory` is where the disk is measured.
TimePrediction predict_time(const Plan& plan, const PlanCosts& costs, const Checkpoint& checkpoint,
                            const ModelSpec& spec, Backend& backend, Io& io, const Path& directory);

}  // namespace llmq

// The weights of a block on every device of a run, of one reading.
#pragma once
#include <set>
#include <span>
#include <string>
#include <vector>

#include "quant/pipeline/quantize_run.h"

namespace llmq {

// While it is held, what several devices read of the weight is read once.
Lease hold_weight(const QuantizeRun& run, const LinearSpec& linear);

// load_block() of the run's checkpoint, one of a device: of these linears, or of all.
std::vector<BlockWeights> load_on_devices(const QuantizeRun& run, int block,
                                          std::span<const LinearId> linears);
std::vector<BlockWeights> load_on_devices(const QuantizeRun& run, int block);

// A block that is done, as `written` has it; `changed`: the dense tensors that its folds changed.
std::vector<BlockWeights> load_written_block(const QuantizeRun& run, const LinearSource& written,
                                             const std::set<std::string>& changed, int block);

}  // namespace llmq

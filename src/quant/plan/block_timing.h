// What one block takes: the pipeline's own code (quant/pipeline/block_quantizer.h) run over one block on a
// few samples of made-up tokens, its parts on the clock, its output packed, hashed and thrown away.
//
// Memory: that of a run over as many samples; nothing is written.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "quant/plan/plan.h"

namespace llmq {

using SecondsByPart = std::vector<std::pair<std::string, double>>;

// Samples of pseudo-random tokens.
CalibrationSet made_up_samples(std::int64_t samples, std::int64_t length, std::int64_t vocabulary);

// The parts that run_pipeline() reports, and "embedding". `plan` as for the whole model; of its modules those
// of the spec's only block count, with that block's sizes. `samples`: of the plan's length; ignored without
// calibration.
SecondsByPart time_block(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec,
                         Backend& backend, std::int64_t samples);

}  // namespace llmq

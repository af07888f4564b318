// A block that an interrupted run finished: its weights as the files hold them, and the samples through it
// once more.
//
// The first run computed with dequantized codes, scales and stored gains; the files hold exactly those, so
// the samples leave the block with the same bits. What a fold did not change is read from the original, as in
// the first run.
#pragma once
#include <set>
#include <string>

#include "quant/pipeline/quantize_run.h"

namespace llmq {

// `written`: the output's tensors; `changed`: the dense tensors of this block that folds changed.
void replay_block(QuantizeRun& run, const LinearSource& written, const std::set<std::string>& changed,
                  int block, ActivationStream& stream);

}  // namespace llmq

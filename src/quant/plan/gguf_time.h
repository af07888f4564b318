// How long a GGUF output will take on this machine: importance by the forward pass of one block
// (quant/plan/time_prediction.h), every tensor by the rounding of some of its rows:
//
//   t = t_importance + sum over tensors of elements * t(type, with importance or without) + t_written +
//   t_hashed
//
// 2^18 elements of the first tensor of each kind are rounded; the file is written and synced at the rate of
// 16 MiB, and hashed at the end. The figures hold for an otherwise idle machine, and for a checkpoint as far
// in the page cache as it is now.
#pragma once
#include "quant/plan/gguf_plan.h"
#include "quant/plan/time_prediction.h"

namespace llmq {

// `model_io` reads the tensors, `io` writes a nameless file in `directory`. Memory: less than the run's.
TimePrediction predict_gguf_time(const GgufPlan& plan, Io& model_io, const Checkpoint& checkpoint,
                                 const ModelSpec& spec, Backend& backend, Io& io, const Path& directory);

}  // namespace llmq

// How much an error in each input channel of each linear matters: the mean square of what arrives there over
// the calibration tokens.
//
//   importance[k] = 1/T sum_t x_t[k]^2          the diagonal of the Gram matrix over T, and what
//                                               llama-imatrix counts
//
// The model runs as it is, without any error of rounding before it. Sums of a chunk are FP64, token after
// token, and those of all chunks have no order (tensor/exact_sums.h): the same for any number of threads, and
// of ranks that have chunks each. Weights are named as GGUF names them; linears that read the same input have
// the same importance. The experts of a mixture are one entry of as many matrices, each with the rows that
// the router sends to it, and how many those were.
#pragma once
#include <functional>
#include <string>

#include "calibration/calibration_text.h"
#include "io/imatrix.h"
#include "model/model_spec.h"
#include "ranks/ranks.h"

namespace llmq {

struct ImportanceOptions {
  Compute compute = Compute::kBFloat16;
  std::int64_t chunk_tokens = 4096;
  bool keep_inputs = true;
  std::function<void(int block)> on_block;  // after each; may throw to stop
  Ranks* ranks = nullptr;                   // who share the samples, and all have the matrix; null: nobody
};

// `datasets` is not filled. `calibration` must not be empty.
Imatrix collect_importance(const Checkpoint& checkpoint, const ModelSpec& spec,
                           const CalibrationSet& calibration, Backend& backend,
                           const ImportanceOptions& options);

}  // namespace llmq

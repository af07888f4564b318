// One block of a model with a share of its width, of the model's own weights: what a run over it takes tells
// what one over the whole block will take.
//
// Hidden and intermediate size are divided by `divisor` and rounded to 128; heads by as much as leaves one KV
// head, and as many query heads to each as there are, if they suffice. Every tensor is the first rows and
// columns of the block's own, FP32. Of the embedding 4096 rows are kept.
//
// Memory: the narrow block in FP32, and once one linear's rows. Cost: one pass over those rows.
#pragma once
#include "model/linear_source.h"
#include "model/model_spec.h"

namespace llmq {

struct BlockSlice {
  Checkpoint checkpoint;
  ModelSpec spec;
};

// `block` of the model alone, as it is.
ModelSpec single_block(const ModelSpec& spec, std::size_t block);
BlockSlice slice_block(const LinearSource& source, const ModelSpec& spec, std::size_t block,
                       std::int64_t divisor);

}  // namespace llmq

// The scales and codes of one block.
#pragma once
#include "tensor/ggml_blocks.h"

namespace llmq {

struct BlockInput {
  const float* x;           // the numbers of one block
  const float* importance;  // their weights; null where there are none
  float mean_square;        // of the whole row
};

// As ggml chooses them: the same bytes (ggml-quants.c). `count` blocks, at most kBlocksAtOnce, that follow
// each other in x and importance.
inline constexpr int kBlocksAtOnce = 4;
void choose_as_ggml(const BlockLayout& layout, const BlockInput& first, int count, BlockFields* fields);

// Replaces blocks by better ones for sum_i importance_i (x_i - x'_i)^2 where it finds them; importance is
// never null here.
void improve_blocks(const BlockLayout& layout, const BlockInput& first, int count, BlockFields* fields);

}  // namespace llmq

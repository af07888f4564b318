// Linears of NVFP4 that keep their codes in a GGUF, as llama.cpp's converter writes them: blocks of the same
// codes and E4M3 scales, and beside them
//
//   NAME.scale        F32 [1], a stack of experts [experts]: what modelopt calls weight_scale_2, and
//                     compressed-tensors 1 / weight_global_scale, rounded to FP32; left out where all are 1
//   NAME.input_scale  alike of their inputs, where the checkpoint rounds these
#pragma once
#include <vector>

#include "export/gguf/gguf_places.h"

namespace llmq {

// For each place whether it keeps its codes; and the scales of all that do, as further places behind the
// others, made of numbers. Rows of no whole blocks of 64, parts that lie in another order, matrices of one
// expert whose numbers differ, and names that a family uses itself keep none.
std::vector<bool> add_nvfp4_scales(const Checkpoint& checkpoint, const LinearSource& linears,
                                   std::vector<GgufPlace>& places);

}  // namespace llmq

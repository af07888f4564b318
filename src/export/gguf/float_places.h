// Linears of NVFP4 and MXFP4 that keep their codes in a GGUF. MXFP4's blocks say all that there is. NVFP4's,
// as llama.cpp's converter writes them, have the same codes and E4M3 scales, and beside them
//
//   NAME.scale        F32 [1], a stack of experts [experts]: what modelopt calls weight_scale_2, and
//                     compressed-tensors 1 / weight_global_scale, rounded to FP32; left out where all are 1
//   NAME.input_scale  alike of their inputs, where the checkpoint rounds these
#pragma once
#include <vector>

#include "export/gguf/gguf_places.h"

namespace llmq {

// For each place the type in which it keeps its codes, kF32 where it does not; and the numbers beside NVFP4,
// as further places behind the others. None keeps what has another order within its rows; nor NVFP4 whose
// rows are no whole blocks of 64, matrices of one expert whose numbers differ, and names that a family uses
// itself.
std::vector<DType> keep_float_codes(const Checkpoint& checkpoint, const LinearSource& linears,
                                    std::vector<GgufPlace>& places);

}  // namespace llmq

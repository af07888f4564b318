// What is asked of a rounded weight before it is written.
#pragma once
#include <string>

#include "base/threads.h"
#include "quant/pipeline/fold.h"
#include "tensor/quantized_matrix.h"

namespace llmq {

// ||D||_F / ||W||_F with D = dequantized * out_scale / in_scale - W.
double weight_error(const LinearWork& work, const QuantizedMatrix& matrix, ThreadPool& pool);
// Error(kUnsupported) naming the module and the checkpoint's file where a scale is beyond the range of its
// type.
void check_scales(const QuantizedMatrix& matrix, const std::string& module, const std::string& file);

}  // namespace llmq

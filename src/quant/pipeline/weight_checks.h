// What is asked of a rounded weight before it is written.
#pragma once
#include <string>

#include "base/threads.h"
#include "quant/pipeline/fold.h"
#include "tensor/quantized_matrix.h"

namespace llmq {

// ||D||_F / ||W||_F with D = dequantized * out_scale / in_scale - W.
double weight_error(const LinearWork& work, const QuantizedMatrix& matrix, ThreadPool& pool);
// What is written has no scale that is 0 or not a number, also of rows of zeros and of inputs that nobody
// saw: engines divide by some of them, and 0 says the same as a scale that was never set. Error(kInternal)
// naming the tensor, the place in it and the checkpoint's file.
void check_scale(float scale, const std::string& place, const std::string& tensor, const std::string& file);
// All scales of a linear. Error(kUnsupported) where one is beyond the range of its type.
void check_scales(const QuantizedMatrix& matrix, const std::string& module, const std::string& file);

}  // namespace llmq

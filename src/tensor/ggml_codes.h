// ggml's block types that are codes around one zero, as codes: Q4_0, Q5_0, Q8_0, Q3_K and Q6_K (tensor/ggml_blocks.h). Their values
// through code_value() are those of to_float32(), bit for bit: a scale d * s_j is one FP32 product in both.
#pragma once
#include "tensor/quantized_matrix.h"

namespace llmq {

// False for plain types and for those with a minimum of their own.
bool has_codes(DType dtype);
// A matrix of `columns` columns without rows, for codes of `dtype`, which has them.
QuantizedMatrix matrix_of_blocks(DType dtype, std::int64_t columns);
// One more row of it, from its blocks.
void append_block_row(DType dtype, const void* bytes, QuantizedMatrix& matrix);

}  // namespace llmq

// ggml's block types (tensor/ggml_blocks.h) as codes: around one zero (Q4_0, Q5_0, Q8_0, Q3_K, Q6_K), or
// above a minimum (Q4_1, Q5_1, Q2_K, Q4_K, Q5_K); those of a table (IQ4_NL, IQ4_XS) as the table's integers
// around 128; MXFP4 and NVFP4, of which no code is -0. Their values by dequantize() are those of
// to_float32(), bit for bit: a scale d * s_j and a minimum m * t_j are one FP32 product each in both.
#pragma once
#include <cstddef>
#include <vector>

#include "tensor/quantized_matrix.h"

namespace llmq {

// False for plain types and for those of grids (tensor/ggml_grids.h).
bool has_codes(DType dtype);
// A matrix of `columns` columns without rows, for codes of `dtype`, which has them. `scale`: what all of
// NVFP4 is multiplied by; 1 of other types.
QuantizedMatrix matrix_of_blocks(DType dtype, std::int64_t columns, float scale = 1);
// One more row of it, from its blocks.
void append_block_row(DType dtype, const void* bytes, QuantizedMatrix& matrix);
// Row n of floats of two levels, whole blocks of 64, as blocks of kNVFP4, or with exponents as blocks of
// kMXFP4: its codes and the bytes of its scales, without the number over all of them.
void append_float_row(DType dtype, const QuantizedMatrix& matrix, std::int64_t n,
                      std::vector<std::byte>& bytes);

}  // namespace llmq

// Rounding to MXFP4 (tensor/mxfp4.h): for each block of 32 the exponent whose rounding leaves the least sum
// of squared errors, among
//
//   floor(log2 max|w|) - 2    the one of OCP, by which the largest has a magnitude of 4 to 8, cut at 6
//   one above it              nothing is cut, and codes are twice as coarse
//   one below it              for a block with an outlier
//
// in this order where sums are equal. A block of zeros has the byte 0.
//
// Cost: three roundings of every weight.
#pragma once
#include <cstdint>
#include <span>

#include "base/threads.h"
#include "tensor/quantized_matrix.h"

namespace llmq {

// `weight` is [rows, columns], finite, columns a multiple of 32; `scheme` is one of WeightType::kFloat4.
QuantizedMatrix round_mxfp4(std::span<const float> weight, std::int64_t rows, std::int64_t columns,
                            const QuantScheme& scheme, ThreadPool& pool);

}  // namespace llmq

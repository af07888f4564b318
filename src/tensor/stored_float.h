// FP32 numbers as a tensor stores them: as FP32, BF16 or F16, rounded to nearest even, little-endian.
//
// Whoever writes numbers decides what may be lost: stored_float() says what would come back, and
// storing_overflows() whether a number becomes an infinity.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "tensor/dtype.h"

namespace llmq {

// `into` has room for values.size() elements of `dtype`. Error(kUnsupported) for a type that is none of the
// three.
void store_floats(std::span<const float> values, DType dtype, std::byte* into);
std::vector<std::byte> stored_floats(std::span<const float> values, DType dtype);

// What is read back where `value` was stored.
float stored_float(float value, DType dtype);

// A finite number that leaves the type's range.
bool storing_overflows(float value, DType dtype);

}  // namespace llmq

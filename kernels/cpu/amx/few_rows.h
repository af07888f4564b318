// Products of a few rows with codes of few bits, in the bits that tiles have.
#pragma once
#include "kernels/cpu/cpu_kernels.h"

namespace llmq {

inline constexpr int64_t kFewTileRows = 2;

// False, and nothing done: more rows, inputs below 2^-100 other than 0, or too deep for the stack.
bool multiply_few_rows(const NarrowProduct& p);

}  // namespace llmq

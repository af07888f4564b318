// The panels of a weight in few bits (kernels/cpu/ops/narrow_codes.h has their bytes) from its codes, scales,
// zeros and minima: nothing is rounded.
#pragma once
#include <cstdint>

#include "kernels/cpu/cpu_kernels.h"
#include "tensor/quantized_matrix.h"

namespace llmq {

// The fewest bits that hold codes and scales as they are: 2, 3, 5 and 6 where the zero is the middle or there
// are minima and groups are whole units, else 4 or 8; scales and minima as the factors that they are made of,
// or in the narrowest type that has them all.
NarrowLayout narrow_layout(const QuantizedMatrix& matrix);

// Rows [first, first + rows) of the matrix as one panel of `panel` columns at `at`, zero where there are
// none.
void write_narrow_panel(unsigned char* at, const NarrowLayout& layout, const QuantizedMatrix& matrix,
                        std::int64_t panel, std::int64_t first, std::int64_t rows);

}  // namespace llmq

// The panels of a weight in few bits (kernels/cpu/ops/narrow_codes.h has their bytes) from its codes, scales,
// zeros and minima: nothing is rounded, but what BF16 does not hold of a book.
#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "kernels/cpu/cpu_kernels.h"
#include "tensor/quantized_matrix.h"

namespace llmq {

struct NarrowForm {
  NarrowLayout layout;                    // its book is null, and shall be this one:
  std::optional<CodeBook> book;           // none: codes are integers
  std::array<std::uint8_t, 256> place{};  // with a book, of a code of the matrix in it
};

// In which order codes of 4 bits lie: pairs for products of BF16, quads for those of INT8.
enum class CodeOrder : unsigned char { kPairs, kQuads };

// The fewest bits that hold codes and scales as they are: 2, 3, 5 and 6 where the zero is the middle or there
// are minima and groups are whole units, else 4 or 8; integers of 8 bits of which the weight has sixteen take
// 4 and a book. Scales and minima as the factors or bytes that they are made of, or in the narrowest type
// that has them all. Quads take 4 bits, and integers of 4 bits at most.
NarrowForm narrow_form(const QuantizedMatrix& matrix, CodeOrder order = CodeOrder::kPairs);

// Rows [first, first + rows) of the matrix as one panel of `panel` columns at `at`, zero where there are
// none.
void write_narrow_panel(unsigned char* at, const NarrowForm& form, const QuantizedMatrix& matrix,
                        std::int64_t panel, std::int64_t first, std::int64_t rows);

}  // namespace llmq

// Rows of FP32 numbers to the bytes of a GGUF tensor: F16, BF16 and ggml's block types (whose bits
// ggml_blocks.h describes).
//
// A block's scales can be chosen in two ways:
//   kGgml  as ggml chooses them (ggml-quants.c: quantize_row_*_ref without importance, quantize_row_*_impl
//          with it): the same bytes as llama.cpp writes for the same numbers and the same importance matrix
//   kBest  a wider search that minimizes sum_j importance_j (w_j - w'_j)^2 of each block and starts from
//          ggml's choice: never above it
// Blocks do not look at each other and each is computed in one order: the same bytes at any thread count.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/threads.h"
#include "tensor/dtype.h"

namespace llmq {

inline constexpr float kLargestImportance = 1e15f;

enum class BlockSearch : std::uint8_t { kGgml, kBest };

// Bytes of one row; Error(kBadInput) where `columns` is no whole number of blocks.
std::uint64_t ggml_row_bytes(DType type, std::int64_t columns);

// `rows` is [rows, columns], finite; `importance` has one weight in [0, kLargestImportance] for each column
// (how much an error there matters: the mean square of the input, as an importance matrix holds it) or is
// empty; `out` has ggml_row_bytes() for each row. Error(kBadInput), naming row and columns, for a number that
// is not finite or that the type cannot hold (a scale beyond F16); Error(kUnsupported) for a type that is not
// written. F16, BF16, MXFP4, and Q8_0 under kGgml do not look at importance.
void quantize_ggml_rows(DType type, std::span<const float> rows, std::int64_t columns,
                        std::span<const float> importance, BlockSearch search, std::span<std::byte> out,
                        ThreadPool& pool);

}  // namespace llmq

// Where each code of a quantized matrix lies in packed words: the only place that says so, for both
// directions.
//
//   compressed-tensors pack-quantized: row n is a little-endian bit stream of fields b bits wide, field j =
//   code(n, j); words int32 [out, ceil(in*b/32)];
//                                      zeros: [ceil(out*b/32), groups], packed along out. Codes are stored
//                                      unsigned (v + 2^(b-1)).
//   AutoAWQ gemm:                      int32 [in, out/8]; nibble i of word (k, c) = code(8c + order[i], k),
//                                      order = 0 2 4 6 1 3 5 7; zeros alike [groups, out/8].
//   GPTQ:                              the bit streams of the first, transposed: int32 [in*b/32, out], a
//                                      column of words an output; zeros [groups, out*b/32], packed along out;
//                                      v1 stores them less one.
// Sources: docs/reference/formats.md (AutoAWQ packing_utils.py; compressed_tensors pack_quantized; AutoGPTQ
// qlinear_cuda.py, whose 3-bit words of 10, 11 and 11 fields are this stream). Bits 2..8 for the first, 4 for
// the second, 2, 3, 4 and 8 for the third.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "tensor/quantized_matrix.h"

namespace llmq {

// fields[r][j] (row-major, rows x count, each < 2^bits) -> rows x ceil(count*bits/32) words; and back.
std::vector<std::uint32_t> pack_bit_stream(std::span<const std::uint8_t> fields, std::int64_t rows,
                                           std::int64_t count, int bits);
std::vector<std::uint8_t> unpack_bit_stream(std::span<const std::uint32_t> words, std::int64_t rows,
                                            std::int64_t count, int bits);

// [out, in] codes -> [in, out/8] words; zeros [out, groups] -> [groups, out/8]; out % 8 == 0.
std::vector<std::uint32_t> pack_awq_gemm(std::span<const std::uint8_t> codes, std::int64_t out_features,
                                         std::int64_t columns);
std::vector<std::uint8_t> unpack_awq_gemm(std::span<const std::uint32_t> words, std::int64_t out_features,
                                          std::int64_t columns);

// [out, in] codes -> [in*b/32, out] words and back; in * b is a multiple of 32.
std::vector<std::uint32_t> pack_gptq(std::span<const std::uint8_t> codes, std::int64_t out_features,
                                     std::int64_t columns, int bits);
std::vector<std::uint8_t> unpack_gptq(std::span<const std::uint32_t> words, std::int64_t out_features,
                                      std::int64_t columns, int bits);
// [groups, out*b/32] words -> zeros [out, groups]. GPTQModel writes v1 by taking one from every field of a
// word at once, and undoes that by adding them again: carries pass between fields, and a zero of 0 survives.
// Other writers have no such fields (has_gptq_v1_borrow), so that for them both readings agree.
enum class GptqZeros : std::uint8_t { kLessOne, kPlain };
std::vector<std::uint8_t> unpack_gptq_zeros(std::span<const std::uint32_t> words, std::int64_t out_features,
                                            std::int64_t groups, int bits, GptqZeros stored);
// Whether a field of v1's zeros has all bits set: a true zero of 0 to GPTQModel, of 2^bits to everybody else.
bool has_gptq_v1_borrow(std::span<const std::uint32_t> words, std::int64_t out_features, std::int64_t groups,
                        int bits);

// [rows, cols] -> [cols, rows]
template <typename T>
std::vector<T> transposed(std::span<const T> values, std::int64_t rows, std::int64_t cols) {
  std::vector<T> out(values.size());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c)
      out[static_cast<std::size_t>(c * rows + r)] = values[static_cast<std::size_t>(r * cols + c)];
  return out;
}

}  // namespace llmq

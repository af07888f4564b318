// 4-bit codes to BF16, row by row, as a program does that has no product of codes: value = (code - zero)
// scale, rounded. For comparison only (cublas_baseline.h).
//
// A thread takes a word of eight codes, lower bits first, and writes 16 bytes; 128 columns have one scale,
// and rows are whole groups.
#pragma once
#include "kernels/common/code_value.h"
#include "kernels/cuda/elementwise.h"

namespace llmq::cuda {

struct Dequantize4 {
  struct alignas(16) Vector {
    uint32_t words[4];
  };
  static constexpr int kCodes = 8, kGroup = 128;

  int64_t elements = 0;             // words of codes
  const uint32_t* codes = nullptr;  // [features, columns / 8]
  const float* scales = nullptr;    // [features, columns / 128]
  const uint8_t* zeros = nullptr;
  Vector* values = nullptr;  // BF16 [features, columns]
  LLMQ_BLOCK void one(int64_t i) const {
    const uint32_t word = codes[i];
    const float scale = scales[i / (kGroup / kCodes)];
    const int zero = zeros[i / (kGroup / kCodes)];
    Vector vector;
    LLMQ_UNROLL
    for (int pair = 0; pair < kCodes / 2; ++pair) {
      // in the upper half: to_bfloat16() without its question for NaN, a branch for each number
      const auto rounded = [&](int at) {
        const uint32_t bits = bits_from_float(code_value(static_cast<int>(word >> 4 * at & 15), zero, scale));
        return bits + 0x7fff + (bits >> 16 & 1);
      };
      vector.words[pair] = rounded(2 * pair) >> 16 | (rounded(2 * pair + 1) & 0xffff0000u);
    }
    values[i] = vector;
  }
};

int launch_dequantize4(const Dequantize4& codes, void* stream);  // dequantize4.cu

}  // namespace llmq::cuda

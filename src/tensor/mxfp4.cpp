#include "tensor/mxfp4.h"

#include <algorithm>
#include <cmath>

namespace llmq {

float mxfp4_scale(std::uint8_t byte) { return std::ldexp(1.0f, int{byte} - 127); }

std::uint8_t mxfp4_byte(float scale) { return static_cast<std::uint8_t>(std::ilogb(scale) + 127); }

std::uint8_t e2m1_code(float scaled) {
  const float size = std::fabs(scaled);
  const int code = size <= 0.25f   ? 0
                   : size < 0.75f  ? 1
                   : size <= 1.25f ? 2
                   : size < 1.75f  ? 3
                   : size <= 2.5f  ? 4
                   : size < 3.5f   ? 5
                   : size <= 5     ? 6
                                   : 7;
  return static_cast<std::uint8_t>(code != 0 && scaled < 0 ? code + 8 : code);
}

std::uint8_t signed_e2m1_code(float scaled) {
  const std::uint8_t code = e2m1_code(scaled);
  return code == 0 && scaled < 0 ? kE2M1MinusZero : code;
}

void ggml_mxfp4_order(const std::uint8_t* pairs, std::uint8_t* into) {
  const auto code = [&](std::size_t k) { return pairs[k / 2] >> (k % 2 * 4) & 15; };
  for (std::size_t j = 0; j < 16; ++j) into[j] = static_cast<std::uint8_t>(code(j) | code(j + 16) << 4);
}

void ggml_mxfp4_values(const std::uint8_t* block, float* into) {
  const float scale = mxfp4_scale(block[0]);
  for (std::size_t j = 0; j < 16; ++j) {  // ggml knows no -0
    into[j] = kE2M1[block[1 + j] & 15] * scale + 0.0f;
    into[j + 16] = kE2M1[block[1 + j] >> 4] * scale + 0.0f;
  }
}

void ggml_mxfp4_block(std::span<const float> values, std::uint8_t* block) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  const auto byte =
      static_cast<std::uint8_t>(largest > 0 ? static_cast<int>(std::floor(std::log2(largest))) - 2 + 127 : 0);
  const float half = std::ldexp(1.0f, int{byte} - 128);
  const auto code = [&](float value) {
    int best = 0;
    float least = std::fabs(value);
    for (int i = 1; i < 16; ++i)
      if (const float off = std::fabs(2 * kE2M1[static_cast<std::size_t>(i)] * half - value); off < least)
        best = i, least = off;
    return best;
  };
  block[0] = byte;
  for (std::size_t j = 0; j < 16; ++j)
    block[1 + j] = static_cast<std::uint8_t>(code(values[j]) | code(values[j + 16]) << 4);
}

}  // namespace llmq

// MXFP4: codes of E2M1 in blocks of 32 along a row, each block with one exponent (E8M0).
//
//   value = e2m1(code) * 2^(byte - 127);   byte 255 stands for no number
//
// As stored in safetensors the first code of a byte is its low half. In a GGUF a block is 17 bytes: the
// exponent, then 16 bytes of which byte j has code j low and code j + 16 high. Sources: OCP Microscaling
// Formats 1.0; ggml's ggml-quants.c and ggml-common.h.
#pragma once
#include <array>
#include <cstdint>
#include <span>

namespace llmq {

inline constexpr std::int64_t kMxfp4Block = 32;
inline constexpr std::uint8_t kMxfp4NoNumber = 255;
inline constexpr std::array<float, 16> kE2M1 = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                                -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

// 2^(byte - 127), exactly: the least is no normal number of FP32, and the values of a block are exact too.
float mxfp4_scale(std::uint8_t byte);
// The byte of such a scale.
std::uint8_t mxfp4_byte(float scale);
// The code nearest to a number that is divided by its block's scale: ties go to the even code, no code is -0.
std::uint8_t e2m1_code(float scaled);
// The same with the sign of what became 0, as compressed-tensors stores it: -0.2 is -0.
std::uint8_t signed_e2m1_code(float scaled);
inline constexpr std::uint8_t kE2M1MinusZero = 8;

// A block's 32 codes, as bytes of 16 pairs of neighbours, as a GGUF has them; `into`: 16 bytes.
void ggml_mxfp4_order(const std::uint8_t* pairs, std::uint8_t* into);
// A block of a GGUF: 17 bytes, 32 values.
void ggml_mxfp4_values(const std::uint8_t* block, float* into);
// The same from 32 finite values, to the byte as ggml rounds them: its exponent is OCP's, and of equally near
// codes the first counts.
void ggml_mxfp4_block(std::span<const float> values, std::uint8_t* block);

}  // namespace llmq

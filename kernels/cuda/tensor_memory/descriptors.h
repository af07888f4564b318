// The two descriptors of tcgen05.mma of E2M1 by E2M1 with scales, bit by bit as CUTLASS 4 has them
// (SmemDescriptor, InstrDescriptorBlockScaled of cute/arch/mma_sm100_desc.hpp).
//
// An operand lies along k without a swizzle: matrices of 8 rows of 16 bytes, each 128 bytes on end. `leading`
// bytes lie between two that follow along k, `stride` bytes between two that follow along the rows. A row of
// 64 codes is 32 bytes: two matrices.
#pragma once
#include <stdint.h>

namespace llmq::cuda {

constexpr int kMatrixWords = 32;  // of 8 rows of 16 bytes

// bits 0-13 address, 16-29 leading, 32-45 stride, each without its four lowest bits; 46-48 the constant 1;
// 61-63 swizzle, 0 is none.
constexpr uint64_t operand_descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
  return (address >> 4 & 0x3fffu) | uint64_t{leading >> 4 & 0x3fffu} << 16 |
         uint64_t{stride >> 4 & 0x3fffu} << 32 | uint64_t{1} << 46;
}

// bits 4-5 the first scale byte of B, 7-9 and 10-12 the formats of A and B (1: E2M1), 17-22 columns / 8, 23
// scales are exponents, 24-28 rows / 16, 29-30 the first scale byte of A; 0 elsewhere: dense, no sign turned,
// both along k, 64 deep.
constexpr uint32_t float4_instruction(int rows, int columns, bool exponents, int first_byte) {
  const auto byte = static_cast<uint32_t>(first_byte);
  return byte << 4 | 1u << 7 | 1u << 10 | static_cast<uint32_t>(columns / 8) << 17 |
         (exponents ? 1u << 23 : 0u) | static_cast<uint32_t>(rows / 16) << 24 | byte << 29;
}

// One instruction. Places in tensor memory are columns from the first that a block has.
struct TensorProduct {
  uint64_t a, b;
  uint32_t instruction;
  int sums, a_scales, b_scales;
  bool add;  // to what the sums are, else they begin
};

}  // namespace llmq::cuda

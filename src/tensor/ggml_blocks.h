// What the bytes of ggml's block types mean, in both directions (ggml-common.h, ggml-quants.c).
//
// A block holds up to 256 unsigned codes q, in sub-blocks that share a scale. With FP16 numbers d and m,
// integer scales s and t, element i of sub-block j is, in FP32 and in this order (ggml's, so that the same
// file gives the same bits here and there),
//   w_i = (d * s_j) * (q_i - zero)                    Q4_0, Q5_0, Q8_0 (s = 1), Q3_K, Q6_K
//   w_i = (d * s_j) * q_i - m * t_j                   Q4_1, Q5_1 (s = 1, t = -1), Q2_K, Q4_K, Q5_K
//   w_i = (d * s_j) * v[q_i]                          IQ4_NL (s = 1), IQ4_XS: v is a table of 16 integers
// Codes lie in bit planes: b bits of element i are in byte i / (run*8/b) * run + i % run of the plane, from
// bit i / run % (8/b) * b on; a code of 3, 5 or 6 bits has its upper bits in a second plane.
#pragma once
#include <array>
#include <cstdint>

#include "base/half.h"
#include "tensor/dtype.h"

namespace llmq {

struct BitPlane {
  int at = 0, bits = 0, run = 1;  // no plane where bits is 0
};

// How the integer scales of the sub-blocks are stored.
enum class ScaleCodes : std::uint8_t {
  kNone,         // one scale, d itself
  kNibblePairs,  // byte j: s_j, 4 bits, below t_j
  kSigned6,      // 16 of s_j + 32: 4 low bits in byte j % 8, 2 high bits in byte 8 + j % 4
  // 8 of s_j and t_j: 6 bits in bytes j and j + 4 for j < 4; then 4 + 4 low bits in byte j + 4 and 2 high
  // bits above the former
  kPairs6,
  kSigned8,  // byte j
  // 8 of s_j + 32: 2 high bits at bit 2 j of two bytes, 4 low bits at bit 4 j of the four behind them
  kSplit6,
};

// What the codes of IQ4_NL and IQ4_XS stand for, rising (ggml's kvalues_iq4nl).
using ValueTable = std::array<std::int8_t, 16>;
inline constexpr ValueTable kUnevenValues = {-127, -104, -83, -65, -49, -35, -22, -10,
                                             1,    13,   25,  38,  53,  69,  89,  113};

struct BlockLayout {
  DType dtype;
  int elements, sub_block;
  BitPlane low, high;
  int zero;        // the code that stands for 0; also what is subtracted
  int scale_at;    // d
  int minimum_at;  // m, -1 where there is none
  ScaleCodes scale_codes;
  int codes_at;                        // of the scale codes
  int scale_low, scale_high;           // range of s; t is in 0 ... scale_high
  const ValueTable* values = nullptr;  // null: a code stands for q - zero
  constexpr int bits() const { return low.bits + high.bits; }
  constexpr int top() const { return (1 << bits()) - 1; }
  constexpr int sub_blocks() const { return elements / sub_block; }
  constexpr bool has_minimum() const { return minimum_at >= 0; }
};

// clang-format off
//   dtype         n  sub      low          high      zero  d   m   scale codes              at  s low, high
inline constexpr BlockLayout kQ4_0 = {
    DType::kQ4_0,  32,  32, { 2, 4, 16}, {},            8,   0, -1, ScaleCodes::kNone,         0,    1,   1};
inline constexpr BlockLayout kQ4_1 = {
    DType::kQ4_1,  32,  32, { 4, 4, 16}, {},            0,   0,  2, ScaleCodes::kNone,         0,    1,   1};
inline constexpr BlockLayout kQ5_0 = {
    DType::kQ5_0,  32,  32, { 6, 4, 16}, { 2, 1,  1},  16,   0, -1, ScaleCodes::kNone,         0,    1,   1};
inline constexpr BlockLayout kQ5_1 = {
    DType::kQ5_1,  32,  32, { 8, 4, 16}, { 4, 1,  1},   0,   0,  2, ScaleCodes::kNone,         0,    1,   1};
inline constexpr BlockLayout kQ8_0 = {
    DType::kQ8_0,  32,  32, { 2, 8,  1}, {},          128,   0, -1, ScaleCodes::kNone,         0,    1,   1};
inline constexpr BlockLayout kQ2_K = {
    DType::kQ2_K, 256,  16, {16, 2, 32}, {},            0,  80, 82, ScaleCodes::kNibblePairs,  0,    0,  15};
inline constexpr BlockLayout kQ3_K = {
    DType::kQ3_K, 256,  16, {32, 2, 32}, { 0, 1, 32},   4, 108, -1, ScaleCodes::kSigned6,     96,  -32,  31};
inline constexpr BlockLayout kQ4_K = {
    DType::kQ4_K, 256,  32, {16, 4, 32}, {},            0,   0,  2, ScaleCodes::kPairs6,       4,    0,  63};
inline constexpr BlockLayout kQ5_K = {
    DType::kQ5_K, 256,  32, {48, 4, 32}, {16, 1, 32},   0,   0,  2, ScaleCodes::kPairs6,       4,    0,  63};
inline constexpr BlockLayout kQ6_K = {
    DType::kQ6_K, 256,  16, { 0, 4, 64}, {128,2, 32},  32, 208, -1, ScaleCodes::kSigned8,    192, -128, 127};
inline constexpr BlockLayout kIQ4_NL = {
    DType::kIQ4_NL, 32, 32, { 2, 4, 16}, {},            0,   0, -1, ScaleCodes::kNone,         0,    1,   1,
    &kUnevenValues};
inline constexpr BlockLayout kIQ4_XS = {
    DType::kIQ4_XS, 256, 32, { 8, 4, 16}, {},           0,   0, -1, ScaleCodes::kSplit6,       2,  -32,  31,
    &kUnevenValues};
// clang-format on

// A block in plain sight.
struct BlockFields {
  Float16 d{}, m{};
  std::array<int, 16> s{}, t{};
  std::array<std::uint8_t, 256> q{};
};

const BlockLayout* block_layout(DType dtype);  // null for plain types and those without fields
BlockFields read_block(const BlockLayout& layout, const std::uint8_t* bytes);
void write_block(const BlockLayout& layout, const BlockFields& fields, std::uint8_t* bytes);
void block_values(const BlockLayout& layout, const BlockFields& fields, float* w);

}  // namespace llmq

#include "tensor/ggml_codes.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tensor/block_scales.h"
#include "tensor/ggml_blocks.h"
#include "tensor/ggml_grids.h"
#include "tensor/mxfp4.h"
#include "tensor/tensor_view.h"

namespace llmq {
namespace {

// Random blocks, whose scale is a small FP16 number.
std::vector<std::uint8_t> random_blocks(const BlockLayout& layout, std::int64_t count) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count * dtype_row(layout.dtype).block_bytes));
  std::uint64_t state = 7;
  for (std::uint8_t& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::uint8_t>(state >> 56);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint16_t d = to_float16(0.001f * static_cast<float>(i - 2)).bits;  // of either sign, and zero
    std::uint8_t* const block = bytes.data() + i * dtype_row(layout.dtype).block_bytes;
    std::memcpy(block + layout.scale_at, &d, sizeof d);
    const std::uint16_t m = to_float16(0.03f * static_cast<float>(3 - i)).bits;
    if (layout.has_minimum()) std::memcpy(block + layout.minimum_at, &m, sizeof m);
  }
  return bytes;
}

TEST(GgmlCodes, HaveTheValuesOfTheBlocksToTheBit) {
  for (const DType dtype :
       {DType::kQ4_0, DType::kQ5_0, DType::kQ8_0, DType::kQ3_K, DType::kQ6_K, DType::kQ4_1, DType::kQ5_1,
        DType::kQ2_K, DType::kQ4_K, DType::kQ5_K, DType::kIQ4_NL, DType::kIQ4_XS}) {
    ASSERT_TRUE(has_codes(dtype));
    const BlockLayout& layout = *block_layout(dtype);
    const std::int64_t rows = 3, columns = 2 * layout.elements;
    const std::vector<std::uint8_t> bytes = random_blocks(layout, rows * 2);
    QuantizedMatrix matrix = matrix_of_blocks(dtype, columns);
    for (std::int64_t row = 0; row < rows; ++row)
      append_block_row(dtype, bytes.data() + row * 2 * dtype_row(dtype).block_bytes, matrix);
    ASSERT_EQ(matrix.out_features, rows);
    ASSERT_EQ(matrix.minima.size(), layout.has_minimum() ? matrix.scales.size() : 0);
    for (const std::uint8_t zero : matrix.zeros)
      ASSERT_EQ(zero, layout.has_minimum() ? 0 : matrix.scheme.middle());
    const ScaleFactors& factors = matrix.factors;
    ASSERT_EQ(factors.together, layout.scale_codes == ScaleCodes::kNone ? 0 : layout.sub_blocks());
    ASSERT_EQ(factors.s.size(), factors.together > 0 ? matrix.scales.size() : 0);
    for (std::size_t i = 0; i < factors.s.size(); ++i) {
      const std::size_t block = i / static_cast<std::size_t>(factors.together);
      ASSERT_EQ(to_float(factors.d.at(block)) * static_cast<float>(factors.s[i]), matrix.scales[i]);
      if (!layout.has_minimum()) continue;
      ASSERT_EQ(to_float(factors.m.at(block)) * static_cast<float>(factors.t.at(i)), matrix.minima[i]);
    }
    std::vector<float> want(static_cast<std::size_t>(rows * columns)), got(want.size());
    to_float32(TensorView(static_cast<const void*>(bytes.data()), dtype, Shape{rows, columns}), want);
    dequantize(matrix, got);
    EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0) << dtype_row(dtype).name;
  }
}

// -0 among their codes; of E4M3 a sign and what is no number, as a file may have them.
TEST(GgmlCodes, OfFloatsHaveTheirValuesToTheBit) {
  for (const DType dtype : {DType::kMXFP4, DType::kNVFP4}) {
    ASSERT_TRUE(has_codes(dtype));
    const std::int64_t rows = 256, columns = 128,
                       row_bytes = columns / dtype_row(dtype).block_elements * dtype_row(dtype).block_bytes;
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(rows * row_bytes));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * i / 7 + 3 * i);
    QuantizedMatrix matrix = matrix_of_blocks(dtype, columns);
    for (std::int64_t row = 0; row < rows; ++row) {
      std::uint8_t* const own = bytes.data() + row * row_bytes;
      own[0] = static_cast<std::uint8_t>(dtype == DType::kMXFP4 && row == 255 ? 0 : row);
      for (std::int64_t block = 1; dtype == DType::kMXFP4 && block < columns / 32; ++block)
        own[block * 17] = static_cast<std::uint8_t>(block + row / 2);
      append_block_row(dtype, own, matrix);
    }
    std::vector<float> want(static_cast<std::size_t>(rows * columns)), got(want.size());
    to_float32(TensorView(static_cast<const void*>(bytes.data()), dtype, Shape{rows, columns}), want);
    dequantize(matrix, got);
    EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0) << dtype_row(dtype).name;
  }
}

// Every byte of a scale, with a number over all of them that is no power of two.
TEST(GgmlCodes, WhatStandsBesideNvfp4MultipliesItsScales) {
  constexpr std::int64_t kLines = 256, kWide = 64, kLineBytes = 36;
  constexpr float kOverAll = 0.0123f;
  std::vector<std::uint8_t> bytes(kLines * kLineBytes);
  QuantizedMatrix matrix = matrix_of_blocks(DType::kNVFP4, kWide, kOverAll);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * i / 5 + 3 * i);
  for (std::size_t row = 0; row < kLines; ++row) {
    bytes[row * kLineBytes] = static_cast<std::uint8_t>(row);
    append_block_row(DType::kNVFP4, bytes.data() + row * kLineBytes, matrix);
  }
  std::vector<float> want(kLines * kWide), got(want.size());
  scaled_values(TensorView(static_cast<const void*>(bytes.data()), DType::kNVFP4, Shape{kLines, kWide}),
                kOverAll, want);
  dequantize(matrix, got);
  EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0);
  EXPECT_EQ(want[64 * 0x38 + 1], kE2M1[bytes[0x38 * kLineBytes + 5] & 15] * kOverAll + 0.0f) << "0x38 is 1";
}

// Codes of -0, too, which a checkpoint may have, and scales by a divisor.
TEST(GgmlCodes, BlocksOfNvfp4AreMadeOfTheirCodes) {
  QuantizedMatrix matrix;
  matrix.scheme.bits = 4, matrix.scheme.weight_type = WeightType::kFloat4;
  matrix.scheme.granularity = Granularity::kGroup, matrix.scheme.group_size = 16;
  matrix.out_features = 2, matrix.in_features = 128;
  matrix.global_scale = 3;
  for (int i = 0; i < 256; ++i) matrix.codes.push_back(static_cast<std::uint8_t>(i * 7 / 3 % 16));
  for (std::uint8_t i = 0; i < 16; ++i)
    matrix.scales.push_back(nvfp4_scale(static_cast<std::uint8_t>(i * 8 + 1), 3));
  std::vector<std::byte> row;
  append_float_row(DType::kNVFP4, matrix, 1, row);
  ASSERT_EQ(row.size(), 72u);
  for (std::size_t k = 0; k < 128; ++k) {
    const std::size_t block = k / 64 * 36, group = k % 64 / 16;
    EXPECT_EQ(static_cast<int>(row[block + group]), static_cast<int>((8 + k / 16) * 8 + 1));
    EXPECT_EQ(static_cast<int>(row[block + 4 + 8 * group + k % 8]) >> (k % 16 / 8 * 4) & 15,
              matrix.codes[128 + k]);
  }
}

TEST(GgmlCodes, BlocksOfMxfp4AreMadeOfTheirCodes) {
  QuantizedMatrix matrix;
  matrix.scheme.bits = 4, matrix.scheme.weight_type = WeightType::kFloat4;
  matrix.scheme.granularity = Granularity::kGroup, matrix.scheme.group_size = 32;
  matrix.out_features = 2, matrix.in_features = 64;
  for (int i = 0; i < 128; ++i) matrix.codes.push_back(static_cast<std::uint8_t>(i * 7 / 3 % 16));
  for (const std::uint8_t byte : {1, 2, 0, 254}) matrix.scales.push_back(mxfp4_scale(byte));
  std::vector<std::byte> row;
  append_float_row(DType::kMXFP4, matrix, 1, row);
  ASSERT_EQ(row.size(), 34u);
  EXPECT_EQ(static_cast<int>(row[0]), 0) << "no normal number of FP32";
  EXPECT_EQ(static_cast<int>(row[17]), 254);
  for (std::size_t k = 0; k < 64; ++k)
    EXPECT_EQ(static_cast<int>(row[k / 32 * 17 + 1 + k % 16]) >> (k % 32 / 16 * 4) & 15,
              matrix.codes[64 + k]);
}

TEST(GgmlCodes, APlainTypeOrOneOfAGridHasNone) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kIQ2_XS, DType::kTQ2_0})
    EXPECT_FALSE(has_codes(dtype)) << dtype_row(dtype).name;
}

}  // namespace
}  // namespace llmq

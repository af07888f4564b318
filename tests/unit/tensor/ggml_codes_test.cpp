#include "tensor/ggml_codes.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tensor/ggml_blocks.h"
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

TEST(GgmlCodes, APlainTypeOrOneOfAGridHasNone) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kIQ2_XS, DType::kTQ2_0})
    EXPECT_FALSE(has_codes(dtype)) << dtype_row(dtype).name;
}

}  // namespace
}  // namespace llmq

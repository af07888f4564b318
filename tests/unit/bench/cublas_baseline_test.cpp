// What can be held of the peer without a GPU: its codes are dequantized to what they stand for.
#include "bench/cublas_baseline.h"

#include <gtest/gtest.h>

#include "base/half.h"
#include "kernels/cuda/launch_emulated.h"
#include "tensor/packed_layout.h"

namespace llmq {
namespace {

TEST(Cublas, CodesBecomeWhatTheyStandFor) {
  QuantizedMatrix matrix;
  matrix.scheme.bits = 4;
  matrix.scheme.group_size = 128;
  matrix.out_features = 5;
  matrix.in_features = 384;  // 240 words: less than a block, and rows of three groups
  unsigned seed = 7;
  const auto next = [&](unsigned below) { return ((seed = seed * 1664525u + 1013904223u) >> 16) % below; };
  for (std::int64_t i = 0; i < matrix.out_features * matrix.in_features; ++i)
    matrix.codes.push_back(static_cast<std::uint8_t>(next(16)));
  ASSERT_EQ(matrix.groups(), 3);
  for (std::int64_t i = 0; i < matrix.out_features * matrix.groups(); ++i) {
    // no BF16 numbers: values are rounded, upwards and downwards
    matrix.scales.push_back(0.001f * static_cast<float>(1 + next(1000)));
    matrix.zeros.push_back(static_cast<std::uint8_t>(next(16)));
  }
  std::vector<float> expected(matrix.codes.size());
  dequantize(matrix, expected);

  const std::vector<std::uint32_t> packed =
      pack_bit_stream(matrix.codes, matrix.out_features, matrix.in_features, 4);
  std::vector<cuda::Dequantize4::Vector> values(packed.size());
  cuda::emulate<cuda::Each<cuda::Dequantize4>>({static_cast<std::int64_t>(packed.size()), packed.data(),
                                                matrix.scales.data(), matrix.zeros.data(), values.data()});
  int rounded = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto bits = static_cast<std::uint16_t>(values[i / 8].words[i % 8 / 2] >> i % 2 * 16);
    ASSERT_EQ(bits, to_bfloat16(expected[i]).bits) << i;
    rounded += to_float(to_bfloat16(expected[i])) != expected[i];
  }
  EXPECT_GT(rounded, 1000);
}

}  // namespace
}  // namespace llmq

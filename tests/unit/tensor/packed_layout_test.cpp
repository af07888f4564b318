// Golden words (formats as AutoAWQ, AutoGPTQ and compressed-tensors write them), a plain definition over odd
// sizes, round trips.
#include "tensor/packed_layout.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"

namespace llmq {
namespace {

using Codes = std::vector<std::uint8_t>;
using Words = std::vector<std::uint32_t>;

Codes random_codes(std::size_t count, int bits, unsigned seed) {
  std::mt19937 random(seed);
  Codes codes(count);
  for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>(random() & ((1u << bits) - 1));
  return codes;
}

// The definition, bit by bit: bit t of field j is bit j*bits + t of the row.
Words pack_by_definition(const Codes& fields, std::int64_t rows, std::int64_t count, int bits) {
  const std::int64_t stride = (count * bits + 31) / 32;
  Words words(static_cast<std::size_t>(rows * stride));
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t j = 0; j < count; ++j)
      for (int t = 0; t < bits; ++t) {
        const std::int64_t bit = j * bits + t;
        const std::uint32_t value = fields[static_cast<std::size_t>(r * count + j)] >> t & 1u;
        words[static_cast<std::size_t>(r * stride + bit / 32)] |= value << (bit % 32);
      }
  return words;
}

TEST(PackedLayout, GoldenBitStreams) {
  EXPECT_EQ(pack_bit_stream(Codes{15, 0, 3, 8, 7, 12, 1, 9}, 1, 8, 4),
            Words{0x91c7830f});  // GPTQ qweight, down eight rows
  EXPECT_EQ(pack_bit_stream(Codes{8, 8, 8, 8, 7, 9, 1, 15}, 1, 8, 4), Words{0xf1978888});  // GPTQ v2 qzeros
  EXPECT_EQ(pack_bit_stream(Codes{0, 1, 15, 8, 9, 7, 13, 3}, 1, 8, 4),
            Words{0x3d798f10});  // compressed-tensors -8 -7 7 0 1 -1 5 -5
  Codes three(32);
  for (std::size_t i = 0; i < 32; ++i) three[i] = static_cast<std::uint8_t>(5 * i % 8);
  EXPECT_EQ(pack_bit_stream(three, 1, 32, 3), (Words{0xa878cea8, 0xcea878ce, 0x78cea878}));
}

TEST(PackedLayout, GoldenAwqWords) {
  EXPECT_EQ(pack_awq_gemm(Codes{0, 1, 2, 3, 4, 5, 6, 7}, 8, 1), Words{0x75316420});
  EXPECT_EQ(pack_awq_gemm(Codes{15, 0, 3, 8, 7, 12, 1, 9}, 8, 1), Words{0x9c80173f});
}

TEST(PackedLayout, BitStreamsFollowTheDefinitionAtEveryWidthAndComeBack) {
  for (int bits = 2; bits <= 8; ++bits)
    for (const std::int64_t count : {1, 7, 8, 31, 32, 33, 64, 100}) {
      const Codes fields =
          random_codes(static_cast<std::size_t>(3 * count), bits, static_cast<unsigned>(bits * 1000 + count));
      const Words words = pack_bit_stream(fields, 3, count, bits);
      EXPECT_EQ(words, pack_by_definition(fields, 3, count, bits)) << bits << " bits, " << count;
      EXPECT_EQ(unpack_bit_stream(words, 3, count, bits), fields) << bits << " bits, " << count;
    }
}

TEST(PackedLayout, AwqFollowsTheDefinitionAndComesBack) {
  constexpr int kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  for (const std::int64_t out : {8, 64, 72, 200})
    for (const std::int64_t columns : {1, 5, 64, 130}) {
      const Codes codes =
          random_codes(static_cast<std::size_t>(out * columns), 4, static_cast<unsigned>(out + columns));
      Words expected(codes.size() / 8);
      for (std::int64_t k = 0; k < columns; ++k)
        for (std::int64_t c = 0; c < out / 8; ++c)
          for (int i = 0; i < 8; ++i)
            expected[static_cast<std::size_t>(k * (out / 8) + c)] |=
                static_cast<std::uint32_t>(codes[static_cast<std::size_t>((8 * c + kOrder[i]) * columns + k)])
                << (4 * i);
      EXPECT_EQ(pack_awq_gemm(codes, out, columns), expected) << out << " x " << columns;
      EXPECT_EQ(unpack_awq_gemm(expected, out, columns), codes) << out << " x " << columns;
    }
}

TEST(PackedLayout, AnOversizedCodeDoesNotReachItsNeighbour) {
  for (int bits = 2; bits < 8; ++bits) {
    Codes fields(40, 0);
    fields[3] = 255;
    const Codes back = unpack_bit_stream(pack_bit_stream(fields, 1, 40, bits), 1, 40, bits);
    for (std::size_t j = 0; j < 40; ++j) EXPECT_EQ(back[j], j == 3 ? (1 << bits) - 1 : 0);
  }
  EXPECT_EQ(pack_awq_gemm(Codes{255, 0, 0, 0, 0, 0, 0, 0}, 8, 1), Words{0xf});
}

TEST(PackedLayout, EmptyAndWrongSizes) {
  EXPECT_TRUE(pack_bit_stream({}, 0, 32, 4).empty());
  EXPECT_THROW(pack_bit_stream(Codes(7), 1, 8, 4), Error);
  EXPECT_THROW(pack_bit_stream(Codes(8), 1, 8, 9), Error);
  EXPECT_THROW(unpack_bit_stream(Words(2), 1, 8, 4), Error);
  EXPECT_THROW(pack_awq_gemm(Codes(12), 12, 1), Error);
}

}  // namespace
}  // namespace llmq

// The two directions of every block type's bits undo each other.
#include "tensor/ggml_blocks.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <string>

#include "tensor/ggml_table.h"

namespace llmq {
namespace {

class BlockBits : public ::testing::TestWithParam<DType> {};

TEST_P(BlockBits, WritingWhatWasReadGivesTheSameBytes) {
  const BlockLayout& layout = *block_layout(GetParam());
  const auto size = static_cast<std::size_t>(dtype_row(GetParam()).block_bytes);
  EXPECT_EQ(layout.elements, dtype_row(GetParam()).block_elements);
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::array<std::uint8_t, 256> bytes{}, again{};
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::uint8_t>(random());
    again.fill(0xff);  // nothing may be left of what was there
    write_block(layout, read_block(layout, bytes.data()), again.data());
    for (std::size_t i = 0; i < size; ++i) ASSERT_EQ(again[i], bytes[i]) << "byte " << i;
    EXPECT_EQ(again[size], 0xff);
  }
}

TEST_P(BlockBits, FieldsStayInTheirRanges) {
  const BlockLayout& layout = *block_layout(GetParam());
  std::array<std::uint8_t, 256> bytes;
  bytes.fill(0xff);
  const BlockFields fields = read_block(layout, bytes.data());
  for (std::size_t j = 0; j < static_cast<std::size_t>(layout.sub_blocks()); ++j) {
    EXPECT_GE(fields.s[j], layout.scale_low);
    EXPECT_LE(fields.s[j], layout.scale_high);
    EXPECT_LE(fields.t[j], layout.scale_high);
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(layout.elements); ++i)
    EXPECT_EQ(fields.q[i], GetParam() == DType::kQ8_0 ? 127 : layout.top());  // Q8_0's byte 0xff is -1
}

INSTANTIATE_TEST_SUITE_P(Types, BlockBits,
                         ::testing::Values(DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                                           DType::kQ8_0, DType::kQ2_K, DType::kQ3_K, DType::kQ4_K,
                                           DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS),
                         [](const auto& type) { return std::string(dtype_row(type.param).name); });

// As ggml's bisection decides: x - lower < upper - x for the lower one.
TEST(GgmlTable, TiesGoUp) {
  for (std::size_t k = 0; k + 1 < kUnevenValues.size(); ++k) {
    const float middle = table_middle(k), below = std::nextafter(middle, -1000.f);
    EXPECT_EQ(table_code(middle), k + 1);
    EXPECT_EQ(table_code(below), k);
    const Lanes values = table_values(Lanes{middle, below, 1000, -1000});
    EXPECT_EQ(values[0], static_cast<float>(kUnevenValues[k + 1]));
    EXPECT_EQ(values[1], static_cast<float>(kUnevenValues[k]));
    EXPECT_EQ(values[2], 113.f);
    EXPECT_EQ(values[3], -127.f);
  }
}

TEST(BlockLayouts, PlainTypesHaveNone) { EXPECT_EQ(block_layout(DType::kF16), nullptr); }

}  // namespace
}  // namespace llmq

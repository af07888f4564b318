// Rows to GGUF bytes: boundaries and plain types.
#include "tensor/ggml_quantize.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "base/error.h"

namespace llmq {
namespace {

std::vector<std::byte> quantized(DType type, const std::vector<float>& rows, std::int64_t columns,
                                 const std::vector<float>& importance = {},
                                 BlockSearch search = BlockSearch::kGgml, int threads = 1) {
  ThreadPool pool(threads);
  std::vector<std::byte> bytes(rows.size() / static_cast<std::size_t>(columns) *
                               ggml_row_bytes(type, columns));
  quantize_ggml_rows(type, rows, columns, importance, search, bytes, pool);
  return bytes;
}

TEST(GgmlQuantize, PlainTypesRoundToNearestEven) {
  const auto bytes = [](std::initializer_list<int> values) {
    std::vector<std::byte> result;
    for (const int value : values) result.push_back(static_cast<std::byte>(value));
    return result;
  };
  EXPECT_EQ(quantized(DType::kF16, {1.f, -0x1.002p0f, 0x1.006p0f, 65519.f}, 2),
            bytes({0x00, 0x3c, 0x00, 0xbc, 0x02, 0x3c, 0xff, 0x7b}));
  EXPECT_EQ(quantized(DType::kBF16, {1.f, -0x1.01p0f, 0x1.03p0f, 0x1p100f}, 4),
            bytes({0x80, 0x3f, 0x80, 0xbf, 0x82, 0x3f, 0x80, 0x71}));
}

TEST(GgmlQuantize, RefusesWhatTheTypeCannotHold) {
  EXPECT_THROW(quantized(DType::kF16, {1.f, 65520.f}, 2), Error);
  EXPECT_THROW(quantized(DType::kBF16, {1.f, std::numeric_limits<float>::max()}, 2), Error);
  EXPECT_THROW(quantized(DType::kF16, {1.f, std::numeric_limits<float>::quiet_NaN()}, 2), Error);
  EXPECT_THROW(quantized(DType::kF16, {1.f, 2.f}, 2, {1.f, -1.f}), Error);
  EXPECT_THROW(ggml_row_bytes(DType::kQ4_0, 48), Error);
  EXPECT_THROW(ggml_row_bytes(DType::kQ4_K, 576), Error);
  EXPECT_EQ(ggml_row_bytes(DType::kQ6_K, 512), 420u);
  EXPECT_TRUE(quantized(DType::kF16, {}, 2).empty());
}

}  // namespace
}  // namespace llmq

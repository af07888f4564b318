// Rows to GGUF bytes: boundaries, plain types, blocks at their limits. (tests/golden/ggml_blocks compares
// with ggml.)
#include "tensor/ggml_quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "tensor/ggml_blocks.h"
#include "tensor/tensor_view.h"

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

// Of x[i] = ((37 i) mod 101 - 50) / 32, as gguf 0.19 rounds them (gguf.quants.quantize).
TEST(GgmlQuantize, Mxfp4IsGgmls) {
  std::vector<float> row;
  for (int i = 0; i < 256; ++i) row.push_back(static_cast<float>(37 * i % 101 - 50) / 32);
  const std::vector<std::byte> bytes = quantized(DType::kMXFP4, row, 256);
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3;
  EXPECT_EQ(bytes.size(), 136u);
  EXPECT_EQ(hash, 0x8173dbd35e2385f3u);
  EXPECT_EQ(quantized(DType::kMXFP4, std::vector<float>(32), 32), std::vector<std::byte>(17));
  EXPECT_THROW(quantized(DType::kMXFP4, std::vector<float>(32, INFINITY), 32), Error);
}

const DType kBlockTypes[] = {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,   DType::kQ5_1,
                             DType::kQ8_0, DType::kQ2_K, DType::kQ3_K,   DType::kQ4_K,
                             DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS};

std::vector<float> read_back(DType type, const std::vector<std::byte>& bytes, std::int64_t rows,
                             std::int64_t columns) {
  std::vector<float> values(static_cast<std::size_t>(rows * columns));
  to_float32(TensorView(static_cast<const void*>(bytes.data()), type, Shape{rows, columns}), values);
  return values;
}

class GgmlQuantizeBlocks : public ::testing::TestWithParam<DType> {};

TEST_P(GgmlQuantizeBlocks, ZerosStayZero) {
  for (const std::vector<float>& importance :
       {std::vector<float>{}, std::vector<float>(256, 1.f), std::vector<float>(256, 0.f)})
    for (const float value :
         read_back(GetParam(), quantized(GetParam(), std::vector<float>(512), 256, importance), 2, 256))
      EXPECT_EQ(value, 0.f);
}

// One number of 10^4 among 255 of about 1: it must come back within half a step of its block, whose range is
// 2 * 10^4 at most; K types round their scales to 4 or 6 bits on top (at most 1/15 of the largest).
TEST_P(GgmlQuantizeBlocks, AnOutlierSurvives) {
  std::vector<float> row(256);
  for (std::size_t i = 0; i < 256; ++i) row[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50) / 50;
  row[77] = 1e4f;
  const BlockLayout& layout = *block_layout(GetParam());
  for (const BlockSearch search : {BlockSearch::kGgml, BlockSearch::kBest}) {
    const std::vector<float> back =
        read_back(GetParam(), quantized(GetParam(), row, 256, {}, search), 1, 256);
    EXPECT_NEAR(back[77], 1e4f, 2e4 / (layout.top() + 1) / 2 + 1e4 / 15);
    for (const float value : back) EXPECT_LT(std::fabs(value), 1.2e4f);
  }
}

TEST_P(GgmlQuantizeBlocks, RefusesScalesBeyondF16AndNumbersThatAreNone) {
  std::vector<float> row(256, 1.f);
  row[200] = 1e30f;
  EXPECT_THROW(quantized(GetParam(), row, 256), Error);
  EXPECT_THROW(quantized(GetParam(), row, 256, std::vector<float>(256, 1.f)), Error);
  EXPECT_THROW(quantized(GetParam(), row, 256, {}, BlockSearch::kBest), Error);
  row[200] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(quantized(GetParam(), row, 256), Error);
  row[200] = 1;
  EXPECT_THROW(
      quantized(GetParam(), row, 256, std::vector<float>(256, std::numeric_limits<float>::infinity())),
      Error);
}

// Numbers with a bell's shape, a few far out, and importances over three orders of magnitude with a stretch
// that is 0.
struct RandomRows {
  static constexpr std::size_t kWidth = 512;
  std::vector<float> numbers, importance;

  explicit RandomRows(unsigned seed, std::size_t rows = 6) {
    std::mt19937 random(seed);
    const auto uniform = [&] { return static_cast<float>(random()) * 0x1p-32f; };
    for (std::size_t i = 0; i < rows * kWidth; ++i) {
      float sum = -6;
      for (int k = 0; k < 12; ++k) sum += uniform();
      numbers.push_back(0.05f * sum / (uniform() < 0.02f ? 0.1f : 1.f));
    }
    for (std::size_t i = 0; i < kWidth; ++i)
      importance.push_back(i >= 96 && i < 160 ? 0.f : std::exp(7 * uniform()));
  }
};

// What each block leaves of sum importance (x - x')^2.
std::vector<double> block_errors(DType type, const std::vector<std::byte>& bytes, const RandomRows& rows,
                                 bool importance) {
  const std::vector<float> back = read_back(
      type, bytes, static_cast<std::int64_t>(rows.numbers.size() / RandomRows::kWidth), RandomRows::kWidth);
  const auto elements = static_cast<std::size_t>(dtype_row(type).block_elements);
  std::vector<double> errors(back.size() / elements);
  for (std::size_t i = 0; i < back.size(); ++i) {
    const double diff = static_cast<double>(back[i]) - static_cast<double>(rows.numbers[i]);
    errors[i / elements] +=
        diff * diff * (importance ? static_cast<double>(rows.importance[i % RandomRows::kWidth]) : 1.0);
  }
  return errors;
}

// The search weighs columns by importance + 2^-20 of its mean; a block's error in importance alone may grow
// by what that floor allows: the floor times the plain error that it traded, which is below 2^-20 * mean *
// (plain error of ggml's block).
TEST_P(GgmlQuantizeBlocks, TheWiderSearchIsNeverWorseInAnyBlockAndBetterOverall) {
  for (unsigned seed = 1; seed <= 8; ++seed) {
    const RandomRows rows(seed);
    for (const bool importance : {false, true}) {
      const std::vector<float> weights = importance ? rows.importance : std::vector<float>{};
      const std::vector<std::byte> as_ggml = quantized(GetParam(), rows.numbers, RandomRows::kWidth, weights),
                                   best = quantized(GetParam(), rows.numbers, RandomRows::kWidth, weights,
                                                    BlockSearch::kBest);
      const std::vector<double> before = block_errors(GetParam(), as_ggml, rows, importance),
                                after = block_errors(GetParam(), best, rows, importance),
                                plain = block_errors(GetParam(), as_ggml, rows, false);
      double mean = 0, total_before = 0, total_after = 0;
      for (const float weight : rows.importance) mean += static_cast<double>(weight) / RandomRows::kWidth;
      for (std::size_t b = 0; b < before.size(); ++b) {
        EXPECT_LE(after[b], before[b] * (1 + 1e-6) + (importance ? 0x1p-20 * mean * plain[b] : 0))
            << "block " << b;
        total_before += before[b];
        total_after += after[b];
      }
      EXPECT_LT(total_after, total_before);
    }
  }
}

TEST_P(GgmlQuantizeBlocks, TheWiderSearchGivesTheSameBytesAtAnyThreadCount) {
  const RandomRows rows(3, 9);
  const std::vector<std::byte> one =
      quantized(GetParam(), rows.numbers, RandomRows::kWidth, rows.importance, BlockSearch::kBest, 1);
  EXPECT_EQ(one,
            quantized(GetParam(), rows.numbers, RandomRows::kWidth, rows.importance, BlockSearch::kBest, 3));
  EXPECT_EQ(std::vector<std::byte>(one.begin(), one.begin() + static_cast<std::ptrdiff_t>(ggml_row_bytes(
                                                                  GetParam(), RandomRows::kWidth))),
            quantized(GetParam(),
                      std::vector<float>(rows.numbers.begin(), rows.numbers.begin() + RandomRows::kWidth),
                      RandomRows::kWidth, rows.importance, BlockSearch::kBest))
      << "a row does not depend on the rows beside it";
}

INSTANTIATE_TEST_SUITE_P(Types, GgmlQuantizeBlocks, ::testing::ValuesIn(kBlockTypes),
                         [](const auto& type) { return std::string(dtype_row(type.param).name); });

}  // namespace
}  // namespace llmq

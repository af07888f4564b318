// Verdicts of measured lines: at, below and above each bar, of the slowest of several, and of what was not
// measured.
#include "bench/device_bars.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <tuple>

namespace llmq {
namespace {

const Limits kLimits{1000, {1, 200, 400}};  // bytes, and FP32, BF16 and INT8 operations a second

// A line that takes `seconds` for so much of the limits' second.
Measured line(const std::string& operation, std::int64_t rows, double seconds, double of_read, double of_bf16,
              const std::string& shape = "") {
  return {operation,
          shape.empty() ? fmt::format("{} rows", rows) : shape,
          rows,
          seconds,
          of_read * 1000 * seconds,
          of_bf16 * 200 * seconds,
          ArithmeticKind::kBF16};
}

// Every bar is just reached. Times are powers of two, so that quotients are exact.
std::vector<Measured> all_at_the_bar() {
  std::vector<Measured> lines = {line(measured::kLargeProduct, 8192, 1, 0.01, 0.5, "8192x8192x8192"),
                                 line(measured::kCalibration, 4096, 1, 0.01, 0.425, "q"),
                                 line(measured::kCalibration, 4096, 2, 0.01, 1.0, "down"),
                                 line(measured::kGram, 4096, 1, 0.01, 0.375, "5120"),
                                 line(measured::kGram, 4096, 4, 0.01, 0.35, "25600"),
                                 line(measured::kAttention, 1, 1, 0.75, 0.01, "1x8192"),
                                 line(measured::kAttention, 8, 1, 0.875, 0.01, "8x8192")};
  for (const int rows : {1, 2, 4, 8, 16, 32}) {
    lines.push_back(line(measured::kCodes4, rows, rows < 16 ? 1 : 1.15, rows == 1 ? 0.8 : 0.1, 0.01));
    lines.push_back(line(measured::kInt8, rows, rows < 16 ? 2 : 1, 0.1, 0.01));
    lines.push_back(line(measured::kDequantized, rows, rows == 4 ? 2 : rows == 32 ? 0.5 : 3, 0.1, 0.01));
  }
  return lines;
}

Measured& find(std::vector<Measured>& lines, const std::string& operation, const std::string& shape) {
  for (Measured& line : lines)
    if (line.operation == operation && line.shape == shape) return line;
  throw std::logic_error("no such line");
}

std::vector<std::string> words(const std::vector<Measured>& lines, const Limits& limits = kLimits) {
  std::vector<std::string> words;
  for (const Verdict& verdict : verdicts(lines, limits)) words.emplace_back(verdict.word());
  return words;
}
using ::testing::ElementsAre;

TEST(DeviceBars, WhatIsAtTheBarMeetsIt) {
  EXPECT_THAT(words(all_at_the_bar()), ElementsAre("met", "met", "met", "met", "met", "met"));
  const std::vector<Verdict> all = verdicts(all_at_the_bar(), kLimits);
  const std::vector<std::tuple<double, std::string, std::string>> expected = {
      {0.85, ">= 0.85", "q"},       {0.70, ">= 0.70", "25600"},  {0.80, ">= 0.80", "1 rows"},
      {1.15, "<= 1.15", "16 rows"}, {2.00, ">= 2.00", "4 rows"}, {0.75, ">= 0.75", "1x8192"}};
  ASSERT_EQ(all.size(), expected.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& [value, wanted, where] = expected[i];
    EXPECT_EQ(all[i].value, value) << all[i].bar;
    EXPECT_EQ(all[i].wanted, wanted);
    EXPECT_EQ(all[i].where, where) << "the slowest is named";
  }
}

// Each line alone a thousandth slower or its peer a thousandth faster: that bar is missed and no other, but
// where one line stands in several.
TEST(DeviceBars, WhatIsBelowTheBarIsShort) {
  const auto slowed = [](const char* operation, const std::string& shape, double by) {
    std::vector<Measured> lines = all_at_the_bar();
    find(lines, operation, shape).seconds *= by;
    return words(lines);
  };
  EXPECT_THAT(slowed(measured::kCalibration, "q", 1.001),
              ElementsAre("short", "met", "met", "met", "met", "met"));
  EXPECT_THAT(slowed(measured::kGram, "25600", 1.001),
              ElementsAre("met", "short", "met", "met", "met", "met"));
  EXPECT_THAT(slowed(measured::kLargeProduct, "8192x8192x8192", 0.999),
              ElementsAre("short", "short", "met", "met", "met", "met"));
  EXPECT_THAT(slowed(measured::kCalibration, "down", 0.5),
              ElementsAre("met", "met", "met", "met", "met", "met"))
      << "above the bar";
  EXPECT_THAT(slowed(measured::kCodes4, "1 rows", 1.001),
              ElementsAre("met", "met", "short", "met", "met", "met"));
  EXPECT_THAT(slowed(measured::kCodes4, "16 rows", 1.001),
              ElementsAre("met", "met", "met", "short", "met", "met"));
  EXPECT_THAT(slowed(measured::kDequantized, "4 rows", 0.999),
              ElementsAre("met", "met", "met", "met", "short", "met"));
  EXPECT_THAT(slowed(measured::kAttention, "1x8192", 1.001),
              ElementsAre("met", "met", "met", "met", "met", "short"));
  EXPECT_THAT(slowed(measured::kAttention, "8x8192", 0.5),
              ElementsAre("met", "met", "met", "met", "met", "met"))
      << "above the bar";
}

TEST(DeviceBars, WhatWasNotMeasuredHasNoVerdict) {
  EXPECT_THAT(words({}), ::testing::Each("not measured"));
  EXPECT_THAT(words(all_at_the_bar(), {}),
              ElementsAre("met", "met", "not measured", "met", "met", "not measured"))
      << "without limits";
  const auto without = [](const char* operation) {
    std::vector<Measured> lines = all_at_the_bar();
    std::erase_if(lines, [&](const Measured& each) { return each.operation == operation; });
    return words(lines);
  };
  EXPECT_THAT(without(measured::kDequantized), ElementsAre("met", "met", "met", "met", "not measured", "met"))
      << "no cuBLASLt";
  std::vector<Measured> lines = all_at_the_bar();
  find(lines, measured::kDequantized, "8 rows").operation = "another";
  EXPECT_THAT(words(lines), ElementsAre("met", "met", "met", "met", "not measured", "met"))
      << "cuBLASLt failed at 8 rows";
  EXPECT_THAT(without(measured::kLargeProduct),
              ElementsAre("not measured", "not measured", "met", "met", "met", "met"));
  EXPECT_THAT(without(measured::kCalibration),
              ElementsAre("not measured", "met", "met", "met", "met", "met"));
  EXPECT_THAT(without(measured::kCodes4),
              ElementsAre("met", "met", "not measured", "not measured", "not measured", "met"));
}

TEST(DeviceBars, OvertakenWhereTheSecondStaysAhead) {
  const std::vector<Measured> lines = all_at_the_bar();
  EXPECT_EQ(overtaken_at(side_by_side(lines, measured::kCodes4, measured::kInt8)), 16);
  EXPECT_EQ(overtaken_at(side_by_side(lines, measured::kInt8, measured::kCodes4)), std::nullopt);
  EXPECT_EQ(overtaken_at({}), std::nullopt);
  // A lead that is lost again, and a tie, are none.
  EXPECT_EQ(overtaken_at({{1, 2, 1}, {2, 1, 2}, {4, 1, 1}, {8, 2, 1}, {16, 2, 1}}), 8);
  EXPECT_EQ(overtaken_at({{1, 2, 1}, {2, 2, 1}}), 1);
  EXPECT_EQ(side_by_side({lines.back()}, measured::kCodes4, measured::kInt8).size(), 0u);
}

TEST(DeviceBars, LimitsAreTheBestOfAMachinesLevels) {
  MachinePeaks peaks;
  peaks.read_bytes_per_second = 5;
  peaks.arithmetic = {{"slow", ArithmeticKind::kBF16, {1, 1}},
                      {"fast", ArithmeticKind::kBF16, {7, 3}},
                      {"middle", ArithmeticKind::kBF16, {4, 4}}};
  const Limits limits = limits_of(peaks);
  EXPECT_EQ(limits.read, 5);
  EXPECT_EQ(limits.products[static_cast<int>(ArithmeticKind::kBF16)], 7);
  EXPECT_EQ(of_products({"", "", 1, 1, 0, 7, ArithmeticKind::kInt8}, limits), std::nullopt);
  EXPECT_EQ(of_products({"", "", 1, 2, 0, 7, ArithmeticKind::kBF16}, limits), 0.5);
}

}  // namespace
}  // namespace llmq

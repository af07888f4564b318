#include "base/zeroed_numbers.h"

#include <gtest/gtest.h>

#include <new>

namespace llmq {
namespace {

constexpr std::size_t kSmall = 1000, kLarge = (std::size_t{40} << 20) / sizeof(double) + 3;

TEST(ZeroedNumbers, AreZerosAgainAfterOthersHadTheMemory) {
  for (const std::size_t count : {kSmall, kLarge})
    for (int time = 0; time < 3; ++time) {
      ZeroedNumbers<double> numbers(count);
      ASSERT_EQ(numbers.size(), count);
      for (std::size_t i = 0; i < count; i += 97) ASSERT_EQ(numbers[i], 0.0) << i;
      ASSERT_EQ(numbers[count - 1], 0.0);
      std::fill(numbers.begin(), numbers.end(), 3.5);
    }
}

TEST(ZeroedNumbers, CopiesHaveNumbersOfTheirOwn) {
  for (const std::size_t count : {kSmall, kLarge}) {
    ZeroedNumbers<double> numbers(count);
    numbers[count / 2] = 7;
    ZeroedNumbers<double> copy = numbers, moved;
    copy[0] = 1;
    EXPECT_EQ(numbers[0], 0);
    EXPECT_EQ(copy[count / 2], 7);
    moved = std::move(copy);
    EXPECT_EQ(moved.size(), count);
    EXPECT_EQ(moved[0], 1);
    EXPECT_EQ(copy.size(), 0u);  // NOLINT(bugprone-use-after-move)
  }
  EXPECT_EQ(ZeroedNumbers<float>().size(), 0u);
  EXPECT_EQ(ZeroedNumbers<float>(0).size(), 0u);
}

TEST(ZeroedNumbers, WithoutMemoryIsAnError) {
  EXPECT_THROW(ZeroedNumbers<double>(std::size_t{1} << 58), std::bad_alloc);
}

}  // namespace
}  // namespace llmq

#include "base/amount_text.h"

#include <gtest/gtest.h>

#include "base/parent_path.h"

namespace llmq {
namespace {

TEST(AmountText, BytesAreDecimal) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(1024), "1.0 kB");
  EXPECT_EQ(bytes_text(269'100'000), "269.1 MB");
  EXPECT_EQ(bytes_text(std::uint64_t{8} << 30), "8.59 GB");
}

TEST(AmountText, SecondsBecomeMinutesAndHours) {
  EXPECT_EQ(seconds_text(48.21), "48.2 s");
  EXPECT_EQ(seconds_text(725.4), "12 min 05 s");
  EXPECT_EQ(seconds_text(7199.6), "2 h 00 min");
  EXPECT_EQ(seconds_text(12'000), "3 h 20 min");
  EXPECT_FALSE(seconds_text(1e300).empty());
}

TEST(ParentPath, OfABareNameIsHere) {
  EXPECT_EQ(parent_of("x"), ".");
  EXPECT_EQ(parent_of("out/x"), "out");
  EXPECT_EQ(parent_of("/x"), "/");
  EXPECT_EQ(parent_of("/"), "/");
}

}  // namespace
}  // namespace llmq

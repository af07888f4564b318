// FP32 numbers to a tensor's bytes: each of the three types, at the edges of its range and of its precision.
#include "tensor/stored_float.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"

namespace llmq::testing {
namespace {

using ::testing::ElementsAre;

std::vector<int> bytes_of(std::vector<float> values, DType dtype) {
  std::vector<int> numbers;
  for (const std::byte byte : stored_floats(values, dtype)) numbers.push_back(static_cast<int>(byte));
  return numbers;
}

TEST(StoredFloat, BytesAreThoseOfTheTypeLeastFirst) {
  EXPECT_THAT(bytes_of({1.0f, -2.5f}, DType::kF32), ElementsAre(0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc0));
  EXPECT_THAT(bytes_of({1.0f, -2.5f}, DType::kBF16), ElementsAre(0x80, 0x3f, 0x20, 0xc0));
  EXPECT_THAT(bytes_of({1.0f, -2.5f}, DType::kF16), ElementsAre(0, 0x3c, 0, 0xc1));
  EXPECT_TRUE(stored_floats({}, DType::kF16).empty());
}

TEST(StoredFloat, RoundsToTheNearestAndToEvenBetweenTwo) {
  EXPECT_EQ(stored_float(1.0f + 0x1p-8f, DType::kBF16), 1.0f);
  EXPECT_EQ(stored_float(1.0f + 0x3p-8f, DType::kBF16), 1.0f + 0x1p-6f);
  EXPECT_EQ(stored_float(1.0f + 0x1p-11f, DType::kF16), 1.0f);
  EXPECT_EQ(stored_float(1.0f + 0x3p-11f, DType::kF16), 1.0f + 0x1p-9f);
  EXPECT_EQ(stored_float(1.0f + 0x1p-23f, DType::kF32), 1.0f + 0x1p-23f);
}

TEST(StoredFloat, OnlyAFiniteNumberCanOverflow) {
  EXPECT_FALSE(storing_overflows(65504.0f, DType::kF16));
  EXPECT_FALSE(storing_overflows(std::nextafter(65520.0f, 0.0f), DType::kF16)) << "is rounded down to 65504";
  EXPECT_TRUE(storing_overflows(65520.0f, DType::kF16));
  EXPECT_TRUE(storing_overflows(-1e30f, DType::kF16));
  EXPECT_FALSE(storing_overflows(1e30f, DType::kBF16));
  EXPECT_TRUE(storing_overflows(std::numeric_limits<float>::max(), DType::kBF16));
  EXPECT_FALSE(storing_overflows(std::numeric_limits<float>::max(), DType::kF32));
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    EXPECT_FALSE(storing_overflows(INFINITY, dtype));
    EXPECT_FALSE(storing_overflows(NAN, dtype));
  }
}

TEST(StoredFloat, OtherTypesAreRefused) {
  EXPECT_THROW(stored_floats(std::vector<float>{1}, DType::kI8), Error);
  EXPECT_THROW(stored_float(1, DType::kF64), Error);
}

}  // namespace
}  // namespace llmq::testing

// Every scale falls into the quarter octave that holds it.
#include "quant/pipeline/scale_histogram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace llmq::testing {
namespace {

using ::testing::ElementsAre;

TEST(ScaleHistogram, BinsByMagnitudeInWholeOctaves) {
  const std::vector<float> scales = {
      0.25f, 0.26f, -0.49f, 1.0f, 1.999f, 0.0f, std::numeric_limits<float>::infinity()};
  const ScaleHistogram found = scale_histogram(scales);
  EXPECT_EQ(found.first_octave, -2);
  EXPECT_THAT(found.counts, ElementsAre(2, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 1));
}

TEST(ScaleHistogram, EveryPowerStartsItsBin) {
  for (int bin = -400; bin < 400; ++bin) {
    const float edge = static_cast<float>(std::exp2(bin / 4.0));
    const float above = edge * 1.0001f, below = edge * 0.9999f;
    const auto bin_of = [](float scale) {
      const std::vector<float> one = {scale};
      const ScaleHistogram found = scale_histogram(one);
      for (std::size_t i = 0; i < found.counts.size(); ++i)
        if (found.counts[i] == 1) return found.first_octave * 4 + static_cast<int>(i);
      return INT32_MIN;
    };
    EXPECT_EQ(bin_of(above), bin);
    EXPECT_EQ(bin_of(below), bin - 1);
  }
}

TEST(ScaleHistogram, NothingButZerosIsEmpty) {
  EXPECT_TRUE(scale_histogram(std::vector<float>{0.0f, -0.0f}).counts.empty());
  EXPECT_TRUE(scale_histogram({}).counts.empty());
}

}  // namespace
}  // namespace llmq::testing

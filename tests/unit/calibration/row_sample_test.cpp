#include "calibration/row_sample.h"

#include <gtest/gtest.h>

#include <set>

namespace llmq {
namespace {

// Value of channel c of token t: t + c / 4, exact in F32 and, for t < 64, in BF16.
std::vector<float> tokens(std::int64_t first, std::int64_t count, std::int64_t channels) {
  std::vector<float> values;
  for (std::int64_t t = first; t < first + count; ++t)
    for (std::int64_t c = 0; c < channels; ++c)
      values.push_back(static_cast<float>(t) + 0.25f * static_cast<float>(c));
  return values;
}

void add(RowSample& sample, Backend& backend, std::vector<float> values, std::int64_t channels,
         std::int64_t first = 0) {
  const auto rows = static_cast<std::int64_t>(values.size()) / channels;
  const Buffer buffer = backend.allocate(values.size() * sizeof(float));
  const TensorView view = buffer.view(DType::kF32, {rows, channels});
  backend.upload(view, values.data());
  sample.add(backend, view, first);
}

TEST(RowSample, KeepsWholeRowsSpreadOverAllTokensAndOutOfStepWithTheSamples) {
  const auto backend = make_fake_backend();
  RowSample sample(4096, 3, 64);
  for (const std::int64_t view : {3, 0, 7, 5, 1, 2, 6, 4})  // in any order
    add(sample, *backend, tokens(view * 512, 512, 3), 3, view * 512);
  ASSERT_EQ(sample.rows(), 64);
  std::set<std::int64_t> places;
  for (std::int64_t i = 0; i < sample.rows(); ++i) {
    const float token = sample.row(i)[0];
    EXPECT_EQ(sample.row(i)[2], token + 0.5f);
    EXPECT_GE(token, static_cast<float>(64 * i));
    EXPECT_LT(token, static_cast<float>(64 * (i + 1)));
    places.insert(static_cast<std::int64_t>(token) % 64);
  }
  EXPECT_GT(places.size(), 32u) << "rows at one place of every sample say nothing of the others";
}

TEST(RowSample, NoMoreRowsThanTokens) {
  const auto backend = make_fake_backend();
  RowSample sample(5, 2, 512);
  add(sample, *backend, tokens(2, 3, 2), 2, 2);
  add(sample, *backend, tokens(0, 2, 2), 2, 0);
  ASSERT_EQ(sample.rows(), 5);
  for (std::int64_t i = 0; i < 5; ++i) EXPECT_EQ(sample.row(i)[0], static_cast<float>(i));
}

TEST(RowSample, MagnitudesByPercentAndDividedChannels) {
  const auto backend = make_fake_backend();
  RowSample sample(101, 1);
  EXPECT_EQ(RowSample().magnitude_at(100), 0);
  std::vector<float> values;
  for (int t = 0; t <= 100; ++t)
    values.push_back(t % 2 == 0 ? static_cast<float>(t) : -static_cast<float>(t));
  add(sample, *backend, values, 1);
  EXPECT_EQ(sample.magnitude_at(100), 100);
  EXPECT_EQ(sample.magnitude_at(90), 90);
  EXPECT_EQ(sample.magnitude_at(0), 0);
  sample.divide_channels(std::vector<float>{2});
  EXPECT_EQ(sample.magnitude_at(100), 50);
}

}  // namespace
}  // namespace llmq

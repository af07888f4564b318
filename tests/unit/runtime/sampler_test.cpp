#include "runtime/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "runtime/stop_strings.h"

namespace llmq::testing {
namespace {

// exp(logit) = 8, 1, 4, 1, 2 out of 16.
const std::vector<float> kLogits = {std::log(8.0f), 0.0f, std::log(4.0f), 0.0f, std::log(2.0f)};

std::vector<double> shares(const SamplingOptions& options, int draws) {
  std::vector<double> share(kLogits.size());
  for (int i = 0; i < draws; ++i)
    share[static_cast<std::size_t>(sample_token(kLogits, options, static_cast<std::uint64_t>(i)))] +=
        1.0 / draws;
  return share;
}

TEST(Sampler, GreedyTakesTheLowestIndexAmongEquals) {
  EXPECT_EQ(greedy_token(std::vector<float>{1, 3, 2, 3}), 1);
  EXPECT_EQ(greedy_token(std::vector<float>{-1}), 0);
  EXPECT_EQ(sample_token(kLogits, {}, 5), 0);
}

// A share estimated from n draws has standard deviation at most 1/(2 sqrt n); five of them are never reached
// by chance (and the draws are fixed).
TEST(Sampler, SharesFollowTheSoftmax) {
  const int draws = 20000;
  const double allowed = 5 * 0.5 / std::sqrt(draws);
  const auto expect = [&](const SamplingOptions& options, const std::vector<double>& weights) {
    const std::vector<double> got = shares(options, draws);
    double sum = 0;
    for (const double weight : weights) sum += weight;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      EXPECT_NEAR(got[i], weights[i] / sum, allowed) << i;
      if (weights[i] == 0) {
        EXPECT_EQ(got[i], 0) << i;
      }
    }
  };
  expect({.temperature = 1}, {8, 1, 4, 1, 2});
  expect({.temperature = 0.5}, {64, 1, 16, 1, 4});
  expect({.temperature = 1, .top_k = 2}, {8, 0, 4, 0, 0});
  expect({.temperature = 1, .top_k = 4}, {8, 1, 4, 0, 2});  // of two equals the lower index
  expect({.temperature = 1, .top_p = 0.7}, {8, 0, 4, 0, 0});
  expect({.temperature = 1, .top_p = 0.01}, {1, 0, 0, 0, 0});
  expect({.temperature = 1, .min_p = 0.2}, {8, 0, 4, 0, 2});
  expect({.temperature = 1, .top_k = 3, .top_p = 0.8, .min_p = 0.1}, {8, 0, 4, 0, 0});
}

TEST(Sampler, DrawsDependOnSeedAndCounterAlone) {
  EXPECT_EQ(counter_uniform(1, 2), counter_uniform(1, 2));
  EXPECT_NE(counter_uniform(1, 2), counter_uniform(2, 1));
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_GE(counter_uniform(9, i), 0.0);
    EXPECT_LT(counter_uniform(9, i), 1.0);
  }
}

TEST(Sampler, OptionsOutOfRangeAreRefused) {
  for (const SamplingOptions& options :
       {SamplingOptions{.temperature = -1}, SamplingOptions{.temperature = std::nan("")},
        SamplingOptions{.top_k = -1}, SamplingOptions{.top_p = 0}, SamplingOptions{.top_p = 1.5},
        SamplingOptions{.min_p = -0.1}, SamplingOptions{.min_p = 2}})
    EXPECT_THROW(check_sampling(options), Error);
  EXPECT_NO_THROW(check_sampling({}));
}

TEST(StopStrings, AcrossPieces) {
  StopStrings stops({"END", "\n\n", ""});
  EXPECT_EQ(stops.push("one E"), "one ");
  EXPECT_EQ(stops.push("N"), "");
  EXPECT_EQ(stops.push("d\n"), "ENd");
  EXPECT_EQ(stops.push("x\n"), "\nx");
  EXPECT_FALSE(stops.stopped());
  EXPECT_EQ(stops.push("\nEND"), "");
  EXPECT_TRUE(stops.stopped());
  EXPECT_EQ(stops.push("more"), "");
  EXPECT_EQ(stops.finish(), "");
}

TEST(StopStrings, TheFirstToBeginWins) {
  StopStrings stops({"bcd", "abc"});
  EXPECT_EQ(stops.push("xxabcd"), "xx");
}

TEST(StopStrings, WhatWasHeldBackComesAtTheEnd) {
  StopStrings stops({"END"});
  EXPECT_EQ(stops.push("the EN"), "the ");
  EXPECT_EQ(stops.finish(), "EN");
}

}  // namespace
}  // namespace llmq::testing

#include "runtime/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "runtime/logprobs.h"
#include "runtime/penalties.h"
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

// The race skips what cannot win by bounds; held against the race run in full.
TEST(Sampler, TheFirstToArriveIsTaken) {
  std::vector<float> logits(500);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 37 % 251) * 0.05f;
  for (std::uint64_t draw = 0; draw < 300; ++draw) {
    const SamplingOptions options{.temperature = 1.3, .seed = 11};
    std::size_t first = 0;
    double best = 1e300;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double time = -std::log(race_uniform(race_start(11, draw), static_cast<std::int32_t>(i))) /
                          std::exp(static_cast<double>(logits[i]) / 1.3);
      if (time < best) best = time, first = i;
    }
    EXPECT_EQ(sample_token(logits, options, draw), static_cast<std::int32_t>(first));
  }
}

TEST(Sampler, TopPSortsAsFarAsItMust) {
  const std::vector<float> flat(1000, 1.5f);  // 700 of them are 0.7: far more than are looked at first
  std::vector<int> seen(1000);
  for (std::uint64_t draw = 0; draw < 12000; ++draw)
    ++seen[static_cast<std::size_t>(sample_token(flat, {.temperature = 1, .top_p = 0.6995}, draw))];
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i] > 0, i < 700) << i;
}

TEST(Penalties, AreThoseOfTheirDefinition) {
  const SamplingOptions options{
      .repetition_penalty = 2, .presence_penalty = 0.5, .frequency_penalty = 0.25, .logit_bias = {{4, 7.0f}}};
  const std::int32_t prompt[] = {0, 1, 1};
  Penalties penalties(options, prompt);
  EXPECT_FALSE(penalties.none());
  for (const std::int32_t token : {1, 2, 2, 2}) penalties.push(token);
  std::vector<float> logits = {4, -4, 6, 3, 1};
  penalties.apply(logits);
  EXPECT_EQ(logits, (std::vector<float>{2, -8 - 0.75f, 3 - 1.25f, 3, 8}));
  EXPECT_TRUE(Penalties({.temperature = 1}, prompt).none());
}

TEST(Logprobs, AreThoseOfTheSoftmax) {
  const double sum = log_sum(kLogits);
  EXPECT_NEAR(sum, std::log(16.0), 1e-6);
  const std::vector<TokenLogprob> three = likeliest_logprobs(kLogits, sum, 3);
  ASSERT_EQ(three.size(), 3u);
  const double shares[] = {8, 4, 2};
  const std::int32_t tokens[] = {0, 2, 4};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(three[i].token, tokens[i]);
    EXPECT_NEAR(three[i].logprob, std::log(shares[i] / 16), 1e-6);
  }
  EXPECT_EQ(likeliest_logprobs(kLogits, sum, 9).size(), 5u);
}

TEST(Sampler, DrawsDependOnSeedAndCounterAlone) {
  EXPECT_EQ(race_uniform(race_start(1, 2), 3), race_uniform(race_start(1, 2), 3));
  EXPECT_NE(race_uniform(race_start(1, 2), 3), race_uniform(race_start(2, 1), 3));
  EXPECT_NE(race_uniform(race_start(1, 2), 3), race_uniform(race_start(1, 3), 2));
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_GT(race_uniform(race_start(9, i), 0), 0.0);
    EXPECT_LT(race_uniform(race_start(9, i), 0), 1.0);
  }
}

TEST(Sampler, OptionsOutOfRangeAreRefused) {
  for (const SamplingOptions& options :
       {SamplingOptions{.temperature = -1}, SamplingOptions{.temperature = std::nan("")},
        SamplingOptions{.top_k = -1}, SamplingOptions{.top_p = 0}, SamplingOptions{.top_p = 1.5},
        SamplingOptions{.min_p = -0.1}, SamplingOptions{.min_p = 2}, SamplingOptions{.repetition_penalty = 0},
        SamplingOptions{.presence_penalty = 2.5}, SamplingOptions{.frequency_penalty = std::nan("")},
        SamplingOptions{.logit_bias = {{3, 101.0f}}}})
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

// As vLLM keeps min_tokens: what ends in them is text, what only begins in them is a stop.
TEST(StopStrings, NoneEndsWhereItMayNot) {
  StopStrings stops({"END", "N", "ENDLESS"});
  EXPECT_EQ(stops.push("one END ", false), "one END ");
  EXPECT_EQ(stops.push("EN", false), "");
  EXPECT_EQ(stops.push("x"), "ENx") << "the N was of a piece that could not stop";
  EXPECT_EQ(stops.push("yE", false), "y");
  EXPECT_EQ(stops.push("ND"), "") << "it ends where it may";
  EXPECT_TRUE(stops.stopped());
}

TEST(StopStrings, WhatWasHeldBackComesAtTheEnd) {
  StopStrings stops({"END"});
  EXPECT_EQ(stops.push("the EN"), "the ");
  EXPECT_EQ(stops.finish(), "EN");
}

}  // namespace
}  // namespace llmq::testing

// Which experts a row goes to, and with which weights.
#include "model/mixers/routing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace llmq {
namespace {

using ::testing::ElementsAre;

RoutedRows routed_rows(const std::vector<float>& logits, std::int64_t experts, int top_k, bool normalized) {
  ThreadPool pool(2);
  return route(logits, {experts, top_k, normalized}, pool);
}

TEST(Routing, RowsLieByExpertWithTheSoftmaxOverAllOfThem) {
  const std::vector<float> logits = {0, std::log(3.0f), std::log(4.0f), std::log(2.0f), 1, 1, -5, 1};
  const RoutedRows some = routed_rows(logits, 4, 2, false);
  EXPECT_THAT(some.first, ElementsAre(0u, 1u, 3u, 4u, 4u));
  EXPECT_THAT(some.rows, ElementsAre(1, 0, 1, 0));  // row 1 has three equal ones: the lower two
  EXPECT_FLOAT_EQ(some.weights[1], 0.3f);
  EXPECT_FLOAT_EQ(some.weights[3], 0.4f);
  const double ties = 1 / (3 + std::exp(-6.0));
  EXPECT_FLOAT_EQ(some.weights[0], static_cast<float>(ties));
  const RoutedRows whole = routed_rows(logits, 4, 2, true);
  EXPECT_EQ(whole.rows, some.rows);
  EXPECT_FLOAT_EQ(whole.weights[1], 3.0f / 7);
  EXPECT_FLOAT_EQ(whole.weights[0], 0.5f);
}

TEST(Routing, ARowDoesNotDependOnItsBatch) {
  std::vector<float> logits;
  std::uint32_t state = 3;
  for (int i = 0; i < 200 * 7; ++i)
    logits.push_back(static_cast<float>((state = state * 1664525u + 1013904223u) >> 16) / 8192.0f);
  const RoutedRows all = routed_rows(logits, 7, 3, true);
  for (const std::size_t row : {std::size_t{0}, std::size_t{63}, std::size_t{64}, std::size_t{199}}) {
    const RoutedRows alone = routed_rows({logits.begin() + static_cast<std::ptrdiff_t>(row * 7),
                                          logits.begin() + static_cast<std::ptrdiff_t>(row * 7 + 7)},
                                         7, 3, true);
    std::vector<float> weights;
    for (std::size_t i = 0; i < all.rows.size(); ++i)
      if (all.rows[i] == static_cast<std::int32_t>(row)) weights.push_back(all.weights[i]);
    EXPECT_EQ(weights, alone.weights) << row;
  }
}

RoutedRows by_sigmoid(const std::vector<float>& logits, Routing routing) {
  ThreadPool pool(1);
  routing.score = RouterScore::kSigmoid;
  return route(logits, routing, pool);
}

// Where sigmoids of all of them are 1, the answers still differ.
TEST(Routing, ThoseChosenByTheirAnswersHaveTheirSigmoids) {
  ThreadPool pool(1);
  const std::vector<float> logits = {40, 50, 60, -2, 1, 0, -1, -2};
  const RoutedRows routed =
      route(logits, {.experts = 4, .top_k = 2, .score = RouterScore::kSigmoidOfChosen}, pool);
  EXPECT_THAT(routed.first, ElementsAre(0u, 1u, 3u, 4u, 4u));
  EXPECT_THAT(routed.rows, ElementsAre(1, 0, 1, 0));
  EXPECT_FLOAT_EQ(routed.weights[0], static_cast<float>(1 / (1 + std::exp(-1.0))));
  EXPECT_EQ(routed.weights[1], 1);
  EXPECT_EQ(routed.weights[2], 0.5f);
  EXPECT_EQ(by_sigmoid(logits, {.experts = 4, .top_k = 2}).rows, (std::vector<std::int32_t>{0, 1, 0, 1}));
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(Routing, ACorrectionChoosesAndDoesNotWeigh) {
  const std::vector<float> logits = {2, 1, 0, -1}, correction = {-1, 0, 0, 0.9f};
  const RoutedRows routed = by_sigmoid(
      logits, {.experts = 4, .top_k = 2, .normalized = true, .correction = correction, .weight_scale = 2.5});
  EXPECT_THAT(routed.first, ElementsAre(0u, 0u, 1u, 1u, 2u));  // experts 1 and 3, not 0 and 1
  const double sum = sigmoid(1) + sigmoid(-1);
  EXPECT_FLOAT_EQ(routed.weights[0], static_cast<float>(2.5 * sigmoid(1) / sum));
  EXPECT_FLOAT_EQ(routed.weights[1], static_cast<float>(2.5 * sigmoid(-1) / sum));
  const RoutedRows plain = by_sigmoid(logits, {.experts = 4, .top_k = 2});
  EXPECT_THAT(plain.first, ElementsAre(0u, 1u, 2u, 2u, 2u));
  EXPECT_FLOAT_EQ(plain.weights[0], static_cast<float>(sigmoid(2)));
}

TEST(Routing, GroupsMayCountByTheirBestAlone) {
  ThreadPool pool(1);
  const std::vector<float> logits = {9, -9, -9, 8, 8, 0};
  const RoutedRows one =
      route(logits, {.experts = 6, .top_k = 2, .groups = 2, .kept_groups = 1, .group_best = 1}, pool);
  EXPECT_THAT(one.first, ElementsAre(0u, 1u, 2u, 2u, 2u, 2u, 2u));
  double all = 0;
  for (const float logit : logits) all += std::exp(static_cast<double>(logit));
  EXPECT_FLOAT_EQ(one.weights[0], static_cast<float>(std::exp(9.0) / all));  // of all, not of those kept
  const RoutedRows two = route(logits, {.experts = 6, .top_k = 2, .groups = 2, .kept_groups = 1}, pool);
  EXPECT_THAT(two.first, ElementsAre(0u, 0u, 0u, 0u, 1u, 2u, 2u));
}

// The group of the greatest answer is not that of the greatest two together.
TEST(Routing, GroupsCountByTheirTwoBest) {
  const std::vector<float> logits = {9, -9, -9, 1, 1, 0};
  const RoutedRows one = by_sigmoid(logits, {.experts = 6, .top_k = 2, .groups = 2, .kept_groups = 1});
  EXPECT_THAT(one.first, ElementsAre(0u, 0u, 0u, 0u, 1u, 2u, 2u));
  const RoutedRows both = by_sigmoid(logits, {.experts = 6, .top_k = 2, .groups = 2, .kept_groups = 2});
  EXPECT_THAT(both.first, ElementsAre(0u, 1u, 1u, 1u, 2u, 2u, 2u));
  // Below 0 by the correction, a group that is kept stays before one that is not.
  const std::vector<float> below = {-5, -5, -5, -5, -5, -6};
  const RoutedRows negative =
      by_sigmoid(logits, {.experts = 6, .top_k = 3, .correction = below, .groups = 2, .kept_groups = 1});
  EXPECT_THAT(negative.first, ElementsAre(0u, 0u, 0u, 0u, 1u, 2u, 3u));
}

TEST(Routing, LargeAndDamagedAnswersChooseExpertsAllTheSame) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const RoutedRows large = routed_rows({3e38f, -3e38f, 3e38f}, 3, 2, true);
  EXPECT_THAT(large.rows, ElementsAre(0, 0));
  EXPECT_THAT(large.weights, ElementsAre(0.5f, 0.5f));
  const RoutedRows damaged = routed_rows({nan, nan, nan, 1, nan, 2}, 3, 2, false);
  EXPECT_EQ(damaged.rows.size(), 4u);
  for (const float weight : damaged.weights) EXPECT_TRUE(std::isnan(weight));
}

TEST(Routing, SigmoidsOfAnySize) {
  const std::vector<float> values = sigmoids(std::vector<float>{0, -800, 800, std::log(3.0f)});
  EXPECT_THAT(values, ElementsAre(0.5f, 0.0f, 1.0f, ::testing::FloatEq(0.75f)));
}

}  // namespace
}  // namespace llmq

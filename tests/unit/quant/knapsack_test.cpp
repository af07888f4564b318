// The chooser against every combination there is, on cases small enough to list them.
#include "quant/mixed_precision/knapsack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace llmq::testing {
namespace {

using Groups = std::vector<std::vector<BudgetOption>>;

struct Sums {
  std::uint64_t cost = 0;
  double loss = 0;
};

Sums sums_of(const Groups& groups, const std::vector<std::size_t>& option) {
  Sums sums;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    sums.cost += groups[g][option[g]].cost;
    sums.loss += groups[g][option[g]].loss;
  }
  return sums;
}

// The least loss within the budget by trying everything; negative when nothing fits.
double brute_force(const Groups& groups, std::uint64_t budget) {
  double best = -1;
  std::vector<std::size_t> option(groups.size());
  while (true) {
    const Sums sums = sums_of(groups, option);
    if (sums.cost <= budget && (best < 0 || sums.loss < best)) best = sums.loss;
    std::size_t g = 0;
    while (g < groups.size() && ++option[g] == groups[g].size()) option[g++] = 0;
    if (g == groups.size()) return best;
  }
}

TEST(BudgetChoice, IsTheBestOfAllCombinations) {
  std::mt19937 random(7);
  const auto below = [&random](unsigned n) { return random() % n; };
  int chosen = 0;
  for (int round = 0; round < 2000; ++round) {
    Groups groups(1 + below(7));
    std::uint64_t most = 0;
    for (std::vector<BudgetOption>& group : groups) {
      group.resize(1 + below(4));
      // Equal costs, equal losses, dominated options and losses off the convex hull all occur.
      for (BudgetOption& option : group) option = {below(40), static_cast<double>(below(1000)) / 8};
      most += 40;
    }
    const std::uint64_t budget = below(static_cast<unsigned>(most) + 1);
    const double expected = brute_force(groups, budget);
    const std::optional<BudgetChoice> found = choose_within(groups, budget);
    ASSERT_EQ(found.has_value(), expected >= 0);
    EXPECT_EQ(found.has_value(), least_cost(groups) <= budget);
    if (!found) continue;
    ++chosen;
    EXPECT_TRUE(found->optimal);
    const Sums sums = sums_of(groups, found->option);
    EXPECT_LE(sums.cost, budget);
    EXPECT_EQ(sums.cost, found->cost);
    EXPECT_EQ(sums.loss, found->loss);  // eighths: exact in any order
    EXPECT_EQ(found->loss, expected) << "round " << round;
  }
  EXPECT_GT(chosen, 1000);
}

// As many groups as a model of 64 blocks has, with its sizes: the answer is proven, and what is left of the
// budget pays no better option of any group.
TEST(BudgetChoice, AModelOf64Blocks) {
  std::mt19937 random(11);
  Groups groups;
  std::uint64_t weights = 0;
  for (int block = 0; block < 64; ++block)
    for (const std::uint64_t size : {52u, 41u, 262u, 131u}) {  // of 2^20 weights
      const double sensitivity = std::exp(std::normal_distribution<double>(0, 2)(random));
      weights += size;
      groups.push_back({{size * 16 * 17 / 4, sensitivity * 256},  // bits in sixteenths
                        {size * 16 * 33 / 4, sensitivity},
                        {size * 16 * 16, 0}});
    }
  for (const double target : {4.25, 4.5, 5.0, 6.0, 9.0, 15.9}) {
    const auto budget = static_cast<std::uint64_t>(target * 16 * static_cast<double>(weights));
    const std::optional<BudgetChoice> found = choose_within(groups, budget);
    ASSERT_TRUE(found.has_value()) << target;
    EXPECT_TRUE(found->optimal) << target;
    EXPECT_LE(found->cost, budget);
    for (std::size_t g = 0; g < groups.size(); ++g)
      for (std::size_t better = found->option[g] + 1; better < groups[g].size(); ++better)
        EXPECT_GT(groups[g][better].cost - groups[g][found->option[g]].cost, budget - found->cost) << target;
  }
}

TEST(BudgetChoice, NothingToChooseIsChosen) {
  const std::optional<BudgetChoice> found = choose_within({}, 0);
  ASSERT_TRUE(found.has_value());
  EXPECT_TRUE(found->option.empty());
}

}  // namespace
}  // namespace llmq::testing

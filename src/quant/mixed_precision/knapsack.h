// One option of every group, so that the losses add up to the least and the costs to no more than a budget
// (the multiple-choice knapsack).
//
//   minimize sum_g loss[g][x_g]   subject to   sum_g cost[g][x_g] <= budget
//
// Exact: states of the first groups that no other beats in both sums, cut where the linear relaxation of the
// remaining groups (their convex hulls, filled in order of loss saved per cost) cannot beat what is known.
// Few states survive; where more than kMostStates would, the least promising are dropped and `optimal` says
// so. Sums are taken in the groups' order: the same on every machine.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace llmq {

struct BudgetOption {
  std::uint64_t cost = 0;
  double loss = 0;
};

struct BudgetChoice {
  std::vector<std::size_t> option;  // of each group
  std::uint64_t cost = 0;
  double loss = 0;
  bool optimal = true;
};

// The cost of the cheapest options together.
std::uint64_t least_cost(std::span<const std::vector<BudgetOption>> groups);

// Nothing when even the cheapest options cost more. Every group has an option; losses are not negative.
std::optional<BudgetChoice> choose_within(std::span<const std::vector<BudgetOption>> groups,
                                          std::uint64_t budget);

}  // namespace llmq

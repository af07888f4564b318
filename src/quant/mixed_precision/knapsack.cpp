#include "quant/mixed_precision/knapsack.h"

#include <algorithm>
#include <limits>

namespace llmq {
namespace {

constexpr std::size_t kMostStates = 1u << 16;

// An option with its place in the caller's list.
struct Kept {
  std::uint64_t cost;
  double loss;
  std::size_t place;
};

// The options that no other beats, by rising cost and falling loss.
std::vector<Kept> undominated(const std::vector<BudgetOption>& options) {
  std::vector<Kept> sorted, kept;
  for (std::size_t i = 0; i < options.size(); ++i) sorted.push_back({options[i].cost, options[i].loss, i});
  std::stable_sort(sorted.begin(), sorted.end(), [](const Kept& a, const Kept& b) {
    return a.cost != b.cost ? a.cost < b.cost : a.loss < b.loss;
  });
  for (const Kept& option : sorted)
    if (kept.empty() || option.loss < kept.back().loss) kept.push_back(option);
  return kept;
}

// A step along a group's lower convex hull: `cost` more saves `saving`.
struct Step {
  std::size_t group, to;  // the option reached
  double cost, saving;
};

void add_hull_steps(const std::vector<Kept>& options, std::size_t group, std::vector<Step>& steps) {
  const auto step = [&](std::size_t from, std::size_t to) {
    return Step{group, to, static_cast<double>(options[to].cost - options[from].cost),
                options[from].loss - options[to].loss};
  };
  for (std::size_t at = 0; at + 1 < options.size();) {
    std::size_t best = at + 1;  // the steepest descent; of equals, the farthest
    for (std::size_t to = at + 2; to < options.size(); ++to)
      if (step(at, to).saving * step(at, best).cost >= step(at, best).saving * step(at, to).cost) best = to;
    steps.push_back(step(at, best));
    at = best;
  }
}

struct Problem {
  std::vector<std::vector<Kept>> groups;
  std::vector<Step> steps;  // of all groups, most saved per cost first
};

Problem read_problem(std::span<const std::vector<BudgetOption>> groups) {
  Problem problem;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    problem.groups.push_back(undominated(groups[g]));
    add_hull_steps(problem.groups.back(), g, problem.steps);
  }
  std::stable_sort(problem.steps.begin(), problem.steps.end(),
                   [](const Step& a, const Step& b) { return a.saving * b.cost > b.saving * a.cost; });
  return problem;
}

// What the groups from `first` on lose at least, whole or in fractions, for a given rest of the budget.
class Relaxation {
 public:
  Relaxation(const Problem& problem, std::size_t first) {
    for (std::size_t g = first; g < problem.groups.size(); ++g) {
      base_cost_ += problem.groups[g].front().cost;
      base_loss_ += problem.groups[g].front().loss;
    }
    cost_.push_back(0);
    saving_.push_back(0);
    for (const Step& step : problem.steps) {
      if (step.group < first) continue;
      cost_.push_back(cost_.back() + step.cost);
      saving_.push_back(saving_.back() + step.saving);
    }
  }
  // Infinity when the rest does not buy even the cheapest options.
  double least_loss(std::uint64_t rest) const {
    if (rest < base_cost_) return std::numeric_limits<double>::infinity();
    const auto room = static_cast<double>(rest - base_cost_);
    const auto next =
        static_cast<std::size_t>(std::upper_bound(cost_.begin(), cost_.end(), room) - cost_.begin());
    double saved = saving_[next - 1];
    if (next < cost_.size())
      saved +=
          (saving_[next] - saving_[next - 1]) * (room - cost_[next - 1]) / (cost_[next] - cost_[next - 1]);
    return std::max(0.0, base_loss_ - saved);
  }

 private:
  std::uint64_t base_cost_ = 0;
  double base_loss_ = 0;
  std::vector<double> cost_, saving_;  // of the first steps together
};

// Options of the first groups: the sums, and the way back.
struct State {
  std::uint64_t cost;
  double loss;
  std::size_t before, option;
};

// Steps taken greedily as far as the budget goes: a first answer to beat.
BudgetChoice greedy(const Problem& problem, std::uint64_t budget) {
  BudgetChoice choice;
  choice.option.assign(problem.groups.size(), 0);
  for (const std::vector<Kept>& group : problem.groups) choice.cost += group.front().cost;
  std::vector<bool> stuck(problem.groups.size());
  for (const Step& step : problem.steps) {
    if (stuck[step.group]) continue;
    const auto cost = static_cast<std::uint64_t>(step.cost);
    stuck[step.group] = cost > budget - choice.cost;
    if (stuck[step.group]) continue;
    choice.cost += cost;
    choice.option[step.group] = step.to;
  }
  for (std::size_t g = 0; g < problem.groups.size(); ++g)
    choice.loss += problem.groups[g][choice.option[g]].loss;
  return choice;
}

// Leaves, by rising cost, the states that no other beats.
void keep_undominated(std::vector<State>& states) {
  std::stable_sort(states.begin(), states.end(), [](const State& a, const State& b) {
    return a.cost != b.cost ? a.cost < b.cost : a.loss < b.loss;
  });
  std::size_t count = 0;
  for (const State& state : states)
    if (count == 0 || state.loss < states[count - 1].loss) states[count++] = state;
  states.resize(count);
}

// Leaves those whose relaxation may still beat `known`; false when some had to go for their number alone.
bool keep_promising(std::vector<State>& states, const Relaxation& rest, std::uint64_t budget, double known) {
  const auto bound = [&](const State& s) { return s.loss + rest.least_loss(budget - s.cost); };
  states.erase(
      std::remove_if(states.begin(), states.end(), [&](const State& s) { return !(bound(s) < known); }),
      states.end());
  if (states.size() <= kMostStates) return true;
  std::stable_sort(states.begin(), states.end(),
                   [&](const State& a, const State& b) { return bound(a) < bound(b); });
  states.resize(kMostStates);
  return false;
}

}  // namespace

std::uint64_t least_cost(std::span<const std::vector<BudgetOption>> groups) {
  std::uint64_t cost = 0;
  for (const std::vector<BudgetOption>& group : groups) cost += undominated(group).front().cost;
  return cost;
}

std::optional<BudgetChoice> choose_within(std::span<const std::vector<BudgetOption>> groups,
                                          std::uint64_t budget) {
  if (least_cost(groups) > budget) return std::nullopt;
  const Problem problem = read_problem(groups);
  BudgetChoice best = greedy(problem, budget);
  std::vector<std::vector<State>> layers = {{{0, 0, 0, 0}}};
  for (std::size_t g = 0; g < problem.groups.size(); ++g) {
    std::vector<State> states;
    for (std::size_t before = 0; before < layers.back().size(); ++before)
      for (std::size_t option = 0; option < problem.groups[g].size(); ++option) {
        const State& from = layers.back()[before];
        const Kept& to = problem.groups[g][option];
        if (to.cost <= budget - from.cost)
          states.push_back({from.cost + to.cost, from.loss + to.loss, before, option});
      }
    keep_undominated(states);
    best.optimal &= keep_promising(states, Relaxation(problem, g + 1), budget, best.loss);
    layers.push_back(std::move(states));
  }
  const std::vector<State>& last = layers.back();
  if (!last.empty()) {  // something beats the greedy answer
    std::size_t at = 0;
    for (std::size_t i = 1; i < last.size(); ++i)
      if (last[i].loss < last[at].loss) at = i;
    best.cost = last[at].cost;
    best.loss = last[at].loss;
    for (std::size_t g = problem.groups.size(); g-- > 0;) {
      const State& state = layers[g + 1][at];
      best.option[g] = state.option;
      at = state.before;
    }
  }
  for (std::size_t g = 0; g < problem.groups.size(); ++g)
    best.option[g] = problem.groups[g][best.option[g]].place;
  return best;
}

}  // namespace llmq

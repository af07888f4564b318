#include "model/mixers/routing.h"

#include <algorithm>
#include <cmath>

namespace llmq {
namespace {

struct Choice {
  std::int32_t expert = 0;
  float weight = 0;
};

// The top_k of one row, from the greatest on.
void choose_experts(std::span<const float> logits, const Routing& routing, std::span<Choice> chosen) {
  std::vector<bool> taken(logits.size());
  for (Choice& choice : chosen) {
    std::size_t best = logits.size();
    for (std::size_t e = 0; e < logits.size(); ++e)
      if (!taken[e] && (best == logits.size() || logits[e] > logits[best])) best = e;
    taken[best] = true;
    choice.expert = static_cast<std::int32_t>(best);
  }
  const double greatest = logits[static_cast<std::size_t>(chosen.front().expert)];
  const auto power = [&](std::size_t e) { return std::exp(static_cast<double>(logits[e]) - greatest); };
  double sum = 0;
  if (routing.normalized)
    for (const Choice& choice : chosen) sum += power(static_cast<std::size_t>(choice.expert));
  else
    for (std::size_t e = 0; e < logits.size(); ++e) sum += power(e);
  for (Choice& choice : chosen)
    choice.weight = static_cast<float>(power(static_cast<std::size_t>(choice.expert)) / sum);
}

}  // namespace

RoutedRows route(std::span<const float> logits, const Routing& routing, ThreadPool& pool) {
  const auto experts = static_cast<std::size_t>(routing.experts), k = static_cast<std::size_t>(routing.top_k),
             count = logits.size() / experts;
  std::vector<Choice> chosen(count * k);
  constexpr std::size_t kItem = 64;
  pool.parallel_for((count + kItem - 1) / kItem, [&](std::size_t item, int) {
    for (std::size_t row = item * kItem, end = std::min(count, row + kItem); row < end; ++row)
      choose_experts(logits.subspan(row * experts, experts), routing, std::span(chosen).subspan(row * k, k));
  });
  RoutedRows routed;
  routed.first.assign(experts + 1, 0);
  for (const Choice& choice : chosen) ++routed.first[static_cast<std::size_t>(choice.expert) + 1];
  for (std::size_t e = 0; e < experts; ++e) routed.first[e + 1] += routed.first[e];
  std::vector<std::size_t> next(routed.first.begin(), routed.first.end() - 1);
  routed.rows.resize(chosen.size());
  routed.weights.resize(chosen.size());
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const std::size_t place = next[static_cast<std::size_t>(chosen[i].expert)]++;
    routed.rows[place] = static_cast<std::int32_t>(i / k);
    routed.weights[place] = chosen[i].weight;
  }
  return routed;
}

std::vector<float> sigmoids(std::span<const float> logits) {
  std::vector<float> values;
  for (const float logit : logits)
    values.push_back(static_cast<float>(1 / (1 + std::exp(-static_cast<double>(logit)))));
  return values;
}

}  // namespace llmq

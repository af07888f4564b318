#include "model/mixers/routing.h"

#include <algorithm>
#include <cmath>

namespace llmq {
namespace {

struct Choice {
  std::int32_t expert = 0;
  float weight = 0;
};

// The `count` greatest of those that are free, from the greatest on, each to take(place); of equal ones the
// first.
template <class Take>
void take_greatest(std::span<const float> values, std::size_t count, std::vector<bool>& taken,
                   const Take& take) {
  for (std::size_t n = 0; n < count; ++n) {
    std::size_t best = values.size();
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!taken[i] && (best == values.size() || values[i] > values[best])) best = i;
    taken[best] = true;
    take(best);
  }
}

// Experts of groups that are not kept count as taken.
void leave_groups(std::span<const float> scores, const Routing& routing, std::vector<bool>& taken) {
  const auto groups = static_cast<std::size_t>(routing.groups), each = scores.size() / groups;
  std::vector<float> sums;
  for (std::size_t group = 0; group < groups; ++group) {
    std::vector<bool> counted(each);
    const std::span<const float> own = scores.subspan(group * each, each);
    float sum = 0;
    take_greatest(own, static_cast<std::size_t>(routing.group_best), counted,
                  [&](std::size_t best) { sum += own[best]; });
    sums.push_back(sum);
  }
  std::vector<bool> kept(groups);
  take_greatest(sums, static_cast<std::size_t>(routing.kept_groups), kept, [](std::size_t) {});
  for (std::size_t e = 0; e < scores.size(); ++e) taken[e] = !kept[e / each];
}

// What softmax(logits) gives those chosen.
void weigh_by_softmax(std::span<const float> logits, const Routing& routing, std::span<Choice> chosen) {
  const double greatest = logits[static_cast<std::size_t>(chosen.front().expert)];
  const auto power = [&](std::size_t e) { return std::exp(static_cast<double>(logits[e]) - greatest); };
  double sum = 0;
  if (routing.normalized)
    for (const Choice& choice : chosen) sum += power(static_cast<std::size_t>(choice.expert));
  else
    for (std::size_t e = 0; e < logits.size(); ++e) sum += power(e);
  for (Choice& choice : chosen)
    choice.weight =
        static_cast<float>(power(static_cast<std::size_t>(choice.expert)) / sum * routing.weight_scale);
}

void weigh_by_scores(std::span<const float> scores, const Routing& routing, std::span<Choice> chosen) {
  constexpr double kAboveZero = 1e-20;  // of Transformers and vLLM: a sum of scores that are all 0
  double sum = 0;
  for (const Choice& choice : chosen) sum += scores[static_cast<std::size_t>(choice.expert)];
  const double factor = routing.normalized ? routing.weight_scale / (sum + kAboveZero) : routing.weight_scale;
  for (Choice& choice : chosen)
    choice.weight = static_cast<float>(factor * scores[static_cast<std::size_t>(choice.expert)]);
}

// The top_k of one row, from the greatest on.
void choose_experts(std::span<const float> logits, const Routing& routing, std::span<Choice> chosen) {
  const bool by_sigmoid = routing.score == RouterScore::kSigmoid;
  const bool weighed_so = routing.score != RouterScore::kSoftmax;
  const std::vector<float> scores = weighed_so ? sigmoids(logits) : std::vector<float>();
  std::vector<float> corrected = by_sigmoid ? scores : std::vector<float>();
  for (std::size_t e = 0; e < routing.correction.size(); ++e) corrected[e] += routing.correction[e];
  const std::span<const float> compared = by_sigmoid ? std::span<const float>(corrected) : logits;
  std::vector<bool> taken(logits.size());
  if (routing.groups > 1) leave_groups(compared, routing, taken);
  std::size_t next = 0;
  take_greatest(compared, chosen.size(), taken,
                [&](std::size_t best) { chosen[next++].expert = static_cast<std::int32_t>(best); });
  weighed_so ? weigh_by_scores(scores, routing, chosen) : weigh_by_softmax(logits, routing, chosen);
  if (routing.expert_scales.empty()) return;
  for (Choice& choice : chosen)
    choice.weight *= routing.expert_scales[static_cast<std::size_t>(choice.expert)];
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

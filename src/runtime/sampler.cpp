#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace llmq {
namespace {

std::uint64_t mix(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

[[noreturn]] void refuse(const char* flag, double value, const char* range) {
  fail(ErrorKind::kUsage, ErrorDetail{fmt::format("{} is not {}", value, range), {}, flag, {}});
}

struct Candidate {
  std::int32_t token;
  double weight;  // exp((logit - greatest) / temperature)
};

double total(const std::vector<Candidate>& candidates) {
  double sum = 0;
  for (const Candidate& candidate : candidates) sum += candidate.weight;
  return sum;
}

// The `count` likeliest tokens in order.
std::vector<std::int32_t> likeliest(std::span<const float> logits, std::size_t count) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      const float left = logits[static_cast<std::size_t>(a)],
                                  right = logits[static_cast<std::size_t>(b)];
                      return left > right || (left == right && a < b);
                    });
  order.resize(count);
  return order;
}

void keep_top_p(std::vector<Candidate>& candidates, double top_p) {
  if (top_p >= 1) return;
  const double wanted = top_p * total(candidates);
  double sum = 0;
  std::size_t kept = 0;
  while (kept < candidates.size() && (kept == 0 || sum < wanted)) sum += candidates[kept++].weight;
  candidates.resize(kept);
}

void keep_min_p(std::vector<Candidate>& candidates, double min_p) {
  const double least = min_p * candidates.front().weight;
  while (candidates.back().weight < least) candidates.pop_back();  // the first one stays: min_p <= 1
}

}  // namespace

void check_sampling(const SamplingOptions& options) {
  if (!(options.temperature >= 0) || std::isinf(options.temperature))
    refuse("--temperature", options.temperature, "a number of 0 or more");
  if (!(options.top_p > 0 && options.top_p <= 1)) refuse("--top-p", options.top_p, "above 0 and at most 1");
  if (!(options.min_p >= 0 && options.min_p <= 1)) refuse("--min-p", options.min_p, "between 0 and 1");
  if (options.top_k < 0) refuse("--top-k", static_cast<double>(options.top_k), "0 (all) or more");
}

double counter_uniform(std::uint64_t seed, std::uint64_t counter) {
  return static_cast<double>(mix(mix(seed) + counter) >> 11) * 0x1p-53;
}

// The greatest first, in chains that do not wait for each other; then where it stands. Comparisons only: any order
// gives the same value, and a NaN is never greater.
std::int32_t greedy_token(std::span<const float> logits) {
  constexpr std::size_t kChains = 8;
  float greatest[kChains];
  std::fill(greatest, greatest + kChains, -std::numeric_limits<float>::infinity());
  std::size_t i = 0;
  for (; i + kChains <= logits.size(); i += kChains)
    for (std::size_t c = 0; c < kChains; ++c)
      greatest[c] = logits[i + c] > greatest[c] ? logits[i + c] : greatest[c];
  for (; i < logits.size(); ++i) greatest[0] = std::max(greatest[0], logits[i]);
  const float best = *std::max_element(greatest, greatest + kChains);
  const auto at = std::find(logits.begin(), logits.end(), best);
  return at == logits.end() ? 0 : static_cast<std::int32_t>(at - logits.begin());
}

std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, std::uint64_t draw) {
  if (options.temperature == 0) return greedy_token(logits);
  const std::size_t count =
      options.top_k > 0 ? std::min(logits.size(), static_cast<std::size_t>(options.top_k)) : logits.size();
  std::vector<Candidate> candidates;
  candidates.reserve(count);
  const auto greatest = static_cast<double>(logits[static_cast<std::size_t>(greedy_token(logits))]);
  for (const std::int32_t token : likeliest(logits, count)) {
    const double distance = static_cast<double>(logits[static_cast<std::size_t>(token)]) - greatest;
    candidates.push_back({token, std::exp(distance / options.temperature)});
  }
  keep_top_p(candidates, options.top_p);
  keep_min_p(candidates, options.min_p);

  const double wanted = counter_uniform(options.seed, draw) * total(candidates);
  double sum = 0;
  for (const Candidate& candidate : candidates)
    if ((sum += candidate.weight) > wanted) return candidate.token;
  return candidates.back().token;  // rounding left the last share just short
}

}  // namespace llmq

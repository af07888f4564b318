#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace llmq {
namespace {

constexpr double kMostPenalty = 2, kMostBias = 100;  // as the OpenAI API has them

[[noreturn]] void refuse(const char* flag, double value, const char* range) {
  fail(ErrorKind::kUsage, {fmt::format("{} is not {}", value, range), {}, flag, {}});
}

// Tokens that may be drawn and their weights exp((logit - greatest) / temperature).
struct Candidate {
  std::int32_t token;
  double weight;
};

class Weights {
 public:
  Weights(std::span<const float> logits, double temperature)
      : logits_(logits),
        temperature_(temperature),
        greatest_(static_cast<double>(logits[static_cast<std::size_t>(greedy_token(logits))])) {}
  // Never above 0; NaN of NaN.
  double exponent(std::int32_t token) const {
    return (static_cast<double>(logits_[static_cast<std::size_t>(token)]) - greatest_) / temperature_;
  }
  double operator()(std::int32_t token) const { return std::exp(exponent(token)); }
  double sum() const {
    double sum = 0;
    for (std::size_t i = 0; i < logits_.size(); ++i) sum += (*this)(static_cast<std::int32_t>(i));
    return sum;
  }

 private:
  std::span<const float> logits_;
  double temperature_, greatest_;
};

std::vector<Candidate> weighted(std::span<const std::int32_t> tokens, const Weights& weights) {
  std::vector<Candidate> candidates;
  candidates.reserve(tokens.size());
  for (const std::int32_t token : tokens) candidates.push_back({token, weights(token)});
  return candidates;
}

// How many at the front together reach `wanted`; 0 when all do not.
std::size_t reaching(const std::vector<Candidate>& candidates, double wanted) {
  double sum = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i)
    if ((sum += candidates[i].weight) >= wanted) return i + 1;
  return 0;
}

// What top-k and top-p leave, in order. Only as many of the vocabulary as top-p needs are sorted.
std::vector<Candidate> head_of(std::span<const float> logits, const SamplingOptions& options,
                               const Weights& weights) {
  const bool all = options.top_k == 0;
  const std::size_t most =
      all ? logits.size() : std::min(logits.size(), static_cast<std::size_t>(options.top_k));
  const double total = all ? weights.sum() : 0;
  for (std::size_t count = all ? std::min<std::size_t>(most, 64) : most;; count = std::min(most, count * 8)) {
    std::vector<Candidate> candidates = weighted(likeliest_tokens(logits, count), weights);
    double sum = total;
    if (!all)
      for (const Candidate& candidate : candidates) sum += candidate.weight;
    const std::size_t kept = options.top_p < 1 ? reaching(candidates, options.top_p * sum) : 0;
    if (kept > 0) candidates.resize(kept);
    if (kept > 0 || count == most) return candidates;
  }
}

// The race among tokens that come one after another.
class Race {
 public:
  Race(const SamplingOptions& options, std::uint64_t draw, std::int32_t favourite)
      : start_(race_start(options.seed, draw)), winner_(favourite) {
    best_ = arrival(favourite);
  }
  // Of relative weight exp(exponent). -log u >= 1 - u and exp(x) >= 1 + x + x^2/2 for x >= 0: most need
  // neither function.
  void enter(std::int32_t token, double exponent) {
    if (token == winner_) return;
    const double x = -exponent, late = 1 - race_uniform(start_, token);
    if (!(late * (1 + x + 0.5 * x * x) < best_)) return;
    const double time = arrival(token) * std::exp(x);
    if (!(time < best_)) return;
    best_ = time;
    winner_ = token;
  }
  std::int32_t winner() const { return winner_; }

 private:
  double arrival(std::int32_t token) const { return -std::log(race_uniform(start_, token)); }

  std::uint64_t start_;
  std::int32_t winner_;
  double best_ = 0;
};

}  // namespace

void check_sampling(const SamplingOptions& options) {
  if (!(options.temperature >= 0) || std::isinf(options.temperature))
    refuse("--temperature", options.temperature, "a number of 0 or more");
  if (!(options.top_p > 0 && options.top_p <= 1)) refuse("--top-p", options.top_p, "above 0 and at most 1");
  if (!(options.min_p >= 0 && options.min_p <= 1)) refuse("--min-p", options.min_p, "between 0 and 1");
  if (options.top_k < 0) refuse("--top-k", static_cast<double>(options.top_k), "0 (all) or more");
  if (!(options.repetition_penalty > 0) || std::isinf(options.repetition_penalty))
    refuse("--repetition-penalty", options.repetition_penalty, "a number above 0");
  if (!(std::abs(options.presence_penalty) <= kMostPenalty))
    refuse("--presence-penalty", options.presence_penalty, "between -2 and 2");
  if (!(std::abs(options.frequency_penalty) <= kMostPenalty))
    refuse("--frequency-penalty", options.frequency_penalty, "between -2 and 2");
  for (const auto& entry : options.logit_bias)
    if (!(std::abs(entry.second) <= kMostBias))
      refuse("--logit-bias", static_cast<double>(entry.second), "between -100 and 100");
}

std::uint64_t answer_seed(std::uint64_t seed, int index) {
  return index == 0 ? seed : race_mix(race_mix(seed) ^ static_cast<std::uint64_t>(index));
}

// The greatest first, in chains that do not wait for each other; then where it stands. Comparisons only: any
// order gives the same value, and a NaN is never greater.
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

std::vector<std::int32_t> likeliest_tokens(std::span<const float> logits, std::size_t count) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  count = std::min(count, order.size());
  // NaN would be no order: it counts as the least.
  const auto value = [&](std::int32_t token) {
    const float logit = logits[static_cast<std::size_t>(token)];
    return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
  };
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      const float left = value(a), right = value(b);
                      return left > right || (left == right && a < b);
                    });
  order.resize(count);
  return order;
}

namespace {

double least_exponent(const SamplingOptions& options) {
  return options.min_p > 0 ? std::log(options.min_p) : -std::numeric_limits<double>::infinity();
}

}  // namespace

std::optional<TokenDraw> whole_row_draw(const SamplingOptions& options, std::uint64_t draw) {
  if (options.temperature == 0) return TokenDraw{};
  if (options.top_k != 0 || options.top_p < 1) return std::nullopt;
  return TokenDraw{race_start(options.seed, draw), options.temperature, least_exponent(options)};
}

std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, std::uint64_t draw) {
  const std::int32_t favourite = greedy_token(logits);
  if (options.temperature == 0) return favourite;
  const Weights weights(logits, options.temperature);
  const double least = least_exponent(options);
  Race race(options, draw, favourite);
  if (options.top_k == 0 && options.top_p >= 1) {
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const auto token = static_cast<std::int32_t>(i);
      if (const double exponent = weights.exponent(token); exponent >= least) race.enter(token, exponent);
    }
  } else {
    for (const Candidate& candidate : head_of(logits, options, weights))
      if (const double exponent = weights.exponent(candidate.token); exponent >= least)
        race.enter(candidate.token, exponent);
  }
  return race.winner();
}

}  // namespace llmq

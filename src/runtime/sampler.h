// From one row of logits to one token.
//
//   p = softmax(logits / temperature);  top-k, then top-p, then min-p cut the tail;  the rest is drawn from,
//   renormalized.
//
// Temperature 0 is greedy: the lowest index among the greatest. Draw i of a sequence uses the i-th number of
// a counter-based generator, so the same seed gives the same text whatever else runs beside it. Candidates
// are ordered by (logit descending, index ascending): a total order, no ties.
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace llmq {

struct SamplingOptions {
  double temperature = 0;
  std::int64_t top_k = 0;  // 0: all
  double top_p = 1;        // smallest set of the likeliest whose sum reaches it
  double min_p = 0;        // at least this share of the likeliest's probability
  std::uint64_t seed = 0;
  // Of tokens that were there before: logit / r where it is positive, else logit * r, for those of prompt and answer; then
  // logit - p - count * f for those of the answer, and + bias.
  double repetition_penalty = 1;                          // r
  double presence_penalty = 0, frequency_penalty = 0;     // p, f
  std::vector<std::pair<std::int32_t, float>> logit_bias = {};  // token, bias
};

// Error(kUsage) naming the option that is out of its range.
void check_sampling(const SamplingOptions& options);

// Uniform in [0, 1): SplitMix64's output function over (seed, counter), 53 bits.
double counter_uniform(std::uint64_t seed, std::uint64_t counter);

std::int32_t greedy_token(std::span<const float> logits);
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, std::uint64_t draw);

}  // namespace llmq

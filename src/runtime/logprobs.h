// Log probabilities of a token and of the likeliest ones, from one row of logits.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace llmq {

struct TokenLogprob {
  std::int32_t token = 0;
  double logprob = 0;  // log softmax of the model's own logits, before penalties and temperature
};
struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> likeliest;  // the most likely first, the lower index among equals
};

// log sum exp of the logits, in FP64.
double log_sum(std::span<const float> logits);
// The `count` likeliest.
std::vector<TokenLogprob> likeliest_logprobs(std::span<const float> logits, double log_sum,
                                             std::int64_t count);

}  // namespace llmq

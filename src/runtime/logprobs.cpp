#include "runtime/logprobs.h"

#include <algorithm>
#include <cmath>

#include "runtime/sampler.h"

namespace llmq {

double log_sum(std::span<const float> logits) {
  const auto greatest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - greatest);
  return greatest + std::log(sum);
}

std::vector<TokenLogprob> likeliest_logprobs(std::span<const float> logits, double log_sum,
                                             std::int64_t count) {
  std::vector<TokenLogprob> result;
  if (count < 1) return result;
  for (const std::int32_t token : likeliest_tokens(logits, static_cast<std::size_t>(count)))
    result.push_back({token, static_cast<double>(logits[static_cast<std::size_t>(token)]) - log_sum});
  return result;
}

}  // namespace llmq

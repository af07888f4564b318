#include "runtime/penalties.h"

namespace llmq {

Penalties::Penalties(const SamplingOptions& options, std::span<const std::int32_t> prompt)
    : options_(options),
      counts_tokens_(options.repetition_penalty != 1 || options.presence_penalty != 0 ||
                     options.frequency_penalty != 0) {
  if (options.repetition_penalty != 1)
    for (const std::int32_t token : prompt) answered_.emplace(token, 0);
}

void Penalties::push(std::int32_t token) {
  if (counts_tokens_) ++answered_[token];
}

void Penalties::apply(std::span<float> logits) const {
  const auto repetition = static_cast<float>(options_.repetition_penalty);
  for (const auto& entry : answered_) {
    float& logit = logits[static_cast<std::size_t>(entry.first)];
    logit = logit > 0 ? logit / repetition : logit * repetition;
    if (entry.second > 0)
      logit -= static_cast<float>(options_.presence_penalty +
                                  options_.frequency_penalty * static_cast<double>(entry.second));
  }
  for (const auto& entry : options_.logit_bias) logits[static_cast<std::size_t>(entry.first)] += entry.second;
}

}  // namespace llmq

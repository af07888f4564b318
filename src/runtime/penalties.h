// What a request adds to the logits before a token is chosen: penalties of tokens that were there before,
// biases, end tokens that may not come yet.
//
// Cost of apply(): the different tokens of prompt and answer, not the vocabulary.
#pragma once
#include <cstdint>
#include <span>
#include <unordered_map>

#include "runtime/sampler.h"

namespace llmq {

class Penalties {
 public:
  Penalties(const SamplingOptions& options, std::span<const std::int32_t> prompt);
  bool none() const { return !counts_tokens_ && options_.logit_bias.empty(); }
  void push(std::int32_t token);  // of the answer
  void apply(std::span<float> logits) const;

 private:
  SamplingOptions options_;
  bool counts_tokens_;
  // how often in the answer; 0 for those of the prompt alone
  std::unordered_map<std::int32_t, std::int64_t> answered_;
};

}  // namespace llmq

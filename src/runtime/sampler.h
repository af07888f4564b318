// From one row of logits to one token.
//
//   p = softmax(logits / temperature);  top-k, then top-p, then min-p cut the tail;  the rest is drawn from,
//                                       renormalized.
//
// Temperature 0 is greedy: the lowest index among the greatest. Else the draw is a race: token i of the
// candidates arrives at the time e(i) / p(i), where e(i) = -log u(seed, draw, i) is exponential, and the
// first one is taken, which happens with probability p(i). The numbers u belong to (seed, draw, token) alone,
// so
//   * the same seed gives the same text whatever else runs beside it, and
//   * a model that guesses what another will draw uses the same numbers: near distributions mostly have the
//     same winner. A guess is right when it is the token that the model itself draws; so what is written does
//     not depend on guesses at all, at any temperature.
// Of two distributions at the total variation distance d, the winners are the same with probability at least
// (1 - d) / (1 + d).
//
// Cost: one pass over the vocabulary; top-p sorts the likeliest until they suffice.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/common/token_race.h"

namespace llmq {

struct SamplingOptions {
  double temperature = 0;
  std::int64_t top_k = 0;  // 0: all
  double top_p = 1;        // smallest set of the likeliest whose sum reaches it
  double min_p = 0;        // at least this share of the likeliest's probability
  std::uint64_t seed = 0;
  // Of tokens that were there before: logit / r where it is positive, else logit * r, for those of prompt and
  // answer; then logit - p - count * f for those of the answer, and + bias (penalties.h).
  double repetition_penalty = 1;                                // r
  double presence_penalty = 0, frequency_penalty = 0;           // p, f
  std::vector<std::pair<std::int32_t, float>> logit_bias = {};  // token, bias
};

// Error(kUsage) naming the option that is out of its range.
void check_sampling(const SamplingOptions& options);

// The seed of answer `index` of a request: 0 has the request's own.
std::uint64_t answer_seed(std::uint64_t seed, int index);

std::int32_t greedy_token(std::span<const float> logits);
// The `count` likeliest tokens, the lower index first among equals.
std::vector<std::int32_t> likeliest_tokens(std::span<const float> logits, std::size_t count);
// How sample_token() draws where it looks at a row as it is, from beginning to end; nothing where top-k or
// top-p have to sort it.
std::optional<TokenDraw> whole_row_draw(const SamplingOptions& options, std::uint64_t draw);
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, std::uint64_t draw);

}  // namespace llmq

// The race that draws a token from a row of logits (runtime/sampler.h says why): token i arrives at the time
// -log u_i * exp(x_i),
//
//   x_i = (greatest - logit_i) / temperature,   u_i uniform in (0, 1) by (seed, draw, i),
//
// and the first to arrive is drawn. Host and devices take the numbers u from these lines. Always-inlined.
#pragma once
#include <stdint.h>

#include "kernels/common/anywhere.h"

namespace llmq {

// How one row's token is drawn where the whole vocabulary may be.
struct TokenDraw {
  uint64_t start = 0;      // race_start()
  double temperature = 0;  // 0: the lowest index among the greatest logits
  double least = 0;        // of -x: log(min-p), or -infinity
};

// SplitMix64's output function.
LLMQ_ANYWHERE uint64_t race_mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
LLMQ_ANYWHERE uint64_t race_start(uint64_t seed, uint64_t draw) { return race_mix(race_mix(seed) + draw); }
// 53 bits, never 0 or 1.
LLMQ_ANYWHERE double race_uniform(uint64_t start, int32_t token) {
  return (static_cast<double>(race_mix(start + static_cast<uint64_t>(token)) >> 11) + 0.5) * 0x1p-53;
}

}  // namespace llmq

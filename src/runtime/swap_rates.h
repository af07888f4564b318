// Whether pages of a sequence that is pushed out come back sooner from host memory than they are computed
// again, by this machine's rates.
//
// A position is computed in a chunk of up to kTried others behind none, which is the cheapest that it can be;
// it is swapped out and in.
#pragma once
#include <cstdint>

#include "runtime/engine.h"

namespace llmq {

struct SwapRates {
  double computed_seconds = 0, swapped_seconds = 0;  // of one position
  bool pays() const { return swapped_seconds < computed_seconds; }
};

// One forward pass of at most 64 tokens and as many positions to the host and back: the engine's cache has
// swap space (KvCache), one page group, and nothing else in it yet.
SwapRates measure_swap(Engine& engine);

}  // namespace llmq

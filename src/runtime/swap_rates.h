// Whether pages of a sequence that is pushed out come back sooner from host memory than they are computed
// again, by this machine's rates.
//
// A position is computed in a chunk of up to kTried others behind none, which is the cheapest that it can be;
// it is swapped out and in. A recurrent state goes there and back once, whatever the sequence's length: a
// sequence has to have some positions before that pays.
#pragma once
#include <cstdint>

#include "runtime/engine.h"

namespace llmq {

struct SwapRates {
  double computed_seconds = 0, swapped_seconds = 0;  // of one position
  double state_seconds = 0;                          // of a recurrent state; 0: there is none
  bool pays() const { return swapped_seconds < computed_seconds; }
  std::int64_t fewest_positions() const;  // where pays()
};

// One forward pass of at most 64 tokens and as many positions to the host and back: the engine's cache has
// swap space (KvCache) for a page or a state, and nothing else in it yet.
SwapRates measure_swap(Engine& engine);

}  // namespace llmq

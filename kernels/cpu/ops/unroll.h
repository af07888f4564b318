// Loops unrolled by construction, so that accumulators stay in registers under any compiler.
#pragma once
#include "base/half.h"

namespace llmq {

template <int I>
struct Index {
  static constexpr int value = I;
};

// body(Index<I>{}) for I = First .. Count-1.
template <int Count, int First = 0, class Body>
LLMQ_INLINE void unroll(const Body& body) {
  if constexpr (First < Count) {
    body(Index<First>{});
    unroll<Count, First + 1>(body);
  }
}

#define LLMQ_LAMBDA_INLINE __attribute__((always_inline))

}  // namespace llmq

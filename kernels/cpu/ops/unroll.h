// Loops unrolled by construction, so that accumulators stay in registers under any compiler.
#pragma once
#include <utility>

#include "base/half.h"

namespace llmq {

template <int I>
struct Index {
  static constexpr int value = I;
};

#define LLMQ_LAMBDA_INLINE __attribute__((always_inline))

template <int First, int... I, class Body>
LLMQ_INLINE void unroll_each(std::integer_sequence<int, I...>, const Body& body) {
  (body(Index<First + I>{}), ...);
}

// body(Index<I>{}) for I = First .. Count-1.
template <int Count, int First = 0, class Body>
LLMQ_INLINE void unroll(const Body& body) {
  if constexpr (First < Count) unroll_each<First>(std::make_integer_sequence<int, Count - First>(), body);
}

}  // namespace llmq

// How many rows of an input one sum of a Gram matrix takes at once: what is packed of them stays in the
// caches, and a worker waits as seldom as that allows. The plan counts the same bytes.
#pragma once
#include <algorithm>
#include <cstdint>

namespace llmq {

// row_bytes > 0, of the packed rows.
inline std::int64_t gram_rows_at_once(std::int64_t row_bytes) {
  constexpr std::int64_t kLeast = 512, kMost = 2048, kBytes = std::int64_t{6} << 20;
  return std::clamp(kBytes / row_bytes / kLeast * kLeast, kLeast, kMost);
}

}  // namespace llmq

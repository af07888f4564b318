// How many rows of an input one sum of a Gram matrix takes at once: what is packed of them stays in the
// caches, and a worker waits as seldom as that allows.
#pragma once
#include <algorithm>
#include <cstdint>

namespace llmq {

// row_bytes > 0, of the packed rows.
inline std::int64_t gram_rows_at_once(std::int64_t row_bytes) {
  constexpr std::int64_t kLeast = 512, kMost = 2048, kBytes = std::int64_t{6} << 20;
  return std::clamp(kBytes / row_bytes / kLeast * kLeast, kLeast, kMost);
}

// What is packed of `rows` rows of `channels` elements, `element` bytes each.
inline std::uint64_t gram_packed_bytes(std::uint64_t rows, std::uint64_t channels, std::uint64_t element) {
  if (channels == 0) return 0;
  const auto at_once =
      static_cast<std::uint64_t>(gram_rows_at_once(static_cast<std::int64_t>(channels * element)));
  return std::min(at_once, rows) * channels * element;
}

}  // namespace llmq

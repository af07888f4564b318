// What each channel of an input takes alone, by all threads: of numbers per channel, or of neighbouring
// columns of whole matrices.
#pragma once
#include <algorithm>
#include <cstddef>

#include "base/threads.h"

namespace llmq {

inline constexpr std::size_t kColumnsTogether = 128;  // half a KiB of a row of FP32

// work(first, count): the columns of one item.
template <typename Work>
void each_columns(std::size_t columns, ThreadPool& pool, const Work& work) {
  pool.parallel_for((columns + kColumnsTogether - 1) / kColumnsTogether, [&](std::size_t item, int) {
    const std::size_t first = item * kColumnsTogether;
    work(first, std::min(kColumnsTogether, columns - first));
  });
}

template <typename Work>
void each_channel(std::size_t channels, ThreadPool& pool, const Work& work) {
  each_columns(channels, pool, [&](std::size_t first, std::size_t count) {
    for (std::size_t k = first; k < first + count; ++k) work(k);
  });
}

}  // namespace llmq

// What each channel of an input takes alone, by all threads.
#pragma once
#include <algorithm>
#include <cstddef>

#include "base/threads.h"

namespace llmq {

template <typename Work>
void each_channel(std::size_t channels, ThreadPool& pool, const Work& work) {
  constexpr std::size_t kTogether = 512;
  pool.parallel_for((channels + kTogether - 1) / kTogether, [&](std::size_t item, int) {
    for (std::size_t k = item * kTogether; k < std::min(channels, (item + 1) * kTogether); ++k) work(k);
  });
}

}  // namespace llmq

// Work that several threads do side by side, and of which nothing depends on who is late.
#pragma once
#include <atomic>
#include <cstddef>
#include <functional>

namespace llmq {

// work(0) on the calling thread, work(1), ..., work(count - 1) each on one of its own; returns when all have
// ended. An error is thrown here when all have ended: of several the first. `failed` tells the others, so
// that they may end early.
void side_by_side(std::size_t count,
                  const std::function<void(std::size_t thread, const std::atomic<bool>& failed)>& work);

}  // namespace llmq

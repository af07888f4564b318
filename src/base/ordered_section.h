// Work that several threads do side by side, and the parts of it that they do one after another, in an order
// that nobody's speed decides.
//
//   OrderedSection turns;
//   side_by_side(threads, turns, [&](std::size_t thread) {
//     for (i of this thread, rising) { ...; turns.wait(i); sum += part; turns.pass(); }
//   });
//
// Every number 0, 1, 2, ... is waited for by one thread, and a thread's numbers rise: then nobody waits for
// ever.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>

namespace llmq {

class OrderedSection {
 public:
  // Until the turns before this one have passed. Throws where stop() was called.
  void wait(std::size_t turn);
  void pass();  // the turn that has come is over
  void stop();  // no further turn comes

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t now_ = 0;
  bool stopped_ = false;
};

// work(0) on the calling thread, work(1), ..., work(count - 1) each on one of its own; returns when all have
// ended. An error stops `turns` and is thrown here when all have ended: of several the first.
void side_by_side(std::size_t count, OrderedSection& turns, const std::function<void(std::size_t)>& work);

}  // namespace llmq

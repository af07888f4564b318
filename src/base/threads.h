// One small pool of threads with a static partition: item i always goes to the same chunk, whoever runs it.
//
// A result may depend on the chunk an item is in only if the chunking does not depend on the thread count;
// therefore parallel_for hands out single items and sums across items are taken by the caller, in item order.
//
// Threads that wait look for a millisecond before they sleep, so that rounds in quick succession cost no
// system call; where there are more threads than cores they sleep at once. A round does not wait for a worker
// that comes when nothing is left.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>

namespace llmq {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // >= 1; the calling thread is one of them
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  // Calls work(item, worker) once for each item in [0, items), worker in [0, size()). Items are taken in
  // order from one shared counter. The first exception stops the hand-out and is rethrown here. Nested calls
  // run in the caller.
  void parallel_for(std::size_t items, const std::function<void(std::size_t item, int worker)>& work);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The cores this process may use: affinity mask and cgroup v1/v2 CPU quota, at least 1.
int available_cores();

}  // namespace llmq

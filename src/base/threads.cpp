#include "base/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace llmq {
namespace {

thread_local bool inside_pool = false;

double cgroup_quota() {
  std::string quota;
  double period = 0;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2 >> quota >> period && quota != "max" && period > 0)
    return std::strtod(quota.c_str(), nullptr) / period;
  double limit = -1;
  std::ifstream v1("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (v1 >> limit && v1_period >> period && limit > 0 && period > 0) return limit / period;
  return 0;  // none
}

}  // namespace

int available_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  int cores = sched_getaffinity(0, sizeof mask, &mask) == 0
                  ? CPU_COUNT(&mask)
                  : static_cast<int>(std::thread::hardware_concurrency());
  if (const double quota = cgroup_quota(); quota > 0)
    cores = std::min(cores, static_cast<int>(std::ceil(quota)));
  return std::max(cores, 1);
}

struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable start, done;
  std::vector<std::thread> threads;
  const std::function<void(std::size_t, int)>* work = nullptr;
  std::size_t items = 0;
  std::atomic<std::size_t> next{0};
  std::uint64_t round = 0;
  int busy = 0;
  bool stopping = false;
  std::exception_ptr error;
  int size = 1;

  void drain(int worker) {
    inside_pool = true;
    try {
      for (std::size_t item = next++; item < items; item = next++) (*work)(item, worker);
    } catch (...) {
      next = items;
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
    inside_pool = false;
  }

  void loop(int worker) {
    std::uint64_t seen = 0;
    for (;;) {
      {
        std::unique_lock lock(mutex);
        start.wait(lock, [&] { return stopping || round != seen; });
        if (stopping) return;
        seen = round;
      }
      drain(worker);
      const std::lock_guard lock(mutex);
      if (--busy == 0) done.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  state_->size = std::max(threads, 1);
  for (int worker = 1; worker < state_->size; ++worker)
    state_->threads.emplace_back([state = state_.get(), worker] { state->loop(worker); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->start.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

int ThreadPool::size() const { return state_->size; }

void ThreadPool::parallel_for(std::size_t items, const std::function<void(std::size_t, int)>& work) {
  if (items == 0) return;
  if (inside_pool || state_->size == 1 || items == 1) {
    for (std::size_t item = 0; item < items; ++item) work(item, 0);
    return;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->work = &work;
    state_->items = items;
    state_->next = 0;
    state_->error = nullptr;
    state_->busy = state_->size - 1;
    ++state_->round;
  }
  state_->start.notify_all();
  state_->drain(0);
  std::unique_lock lock(state_->mutex);
  state_->done.wait(lock, [&] { return state_->busy == 0; });
  if (state_->error) std::rethrow_exception(state_->error);
}

}  // namespace llmq

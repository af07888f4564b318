#include "base/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
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

// A round's word: its number, whether workers may still join it, and how many have.
constexpr std::uint64_t kOpen = std::uint64_t{1} << 31, kJoined = kOpen - 1;
constexpr std::uint64_t number_of(std::uint64_t word) { return word >> 32; }

// How long a thread that waits for another looks before it sleeps. Longer than what one thread does alone
// between two rounds of a forward pass, so that a decoded token needs no system call; short beside a
// scheduler's slice.
constexpr std::chrono::microseconds kPatience{1000};

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): what all threads write has cache lines of its own
struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable start, done;
  std::vector<std::thread> threads;
  int size = 1;
  bool patient = true;  // every thread has a core: looking takes nothing from the one looked for
  const std::function<void(std::size_t, int)>* work = nullptr;
  std::size_t items = 0;
  std::exception_ptr error;  // under mutex
  std::atomic<bool> stopping{false};
  std::atomic<bool> caller_sleeps{false};
  std::atomic<int> sleepers{0};
  alignas(64) std::atomic<std::uint64_t> round{0};
  alignas(64) std::atomic<std::size_t> next{0};

  // Whether `ready` came true before patience ran out. Reading the clock is the pause between two looks.
  template <class Ready>
  bool look_for(const Ready& ready) const {
    if (!patient) return ready();
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!ready())
      if (std::chrono::steady_clock::now() > end) return false;
    return true;
  }

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

  // Counts this worker in, unless the round has closed without it.
  bool join(std::uint64_t& seen) {
    std::uint64_t word = round;
    while ((word & kOpen) != 0)
      if (round.compare_exchange_weak(word, word + 1)) break;
    seen = number_of(word);
    return (word & kOpen) != 0;
  }

  void loop(int worker) {
    std::uint64_t seen = 0;
    const auto called = [&] { return stopping || number_of(round) != seen; };
    for (;;) {
      if (!look_for(called)) {
        std::unique_lock lock(mutex);
        ++sleepers;
        start.wait(lock, called);
        --sleepers;
      }
      if (stopping) return;
      if (!join(seen)) continue;
      drain(worker);
      --round;
      if (!caller_sleeps) continue;
      const std::lock_guard lock(mutex);
      done.notify_one();
    }
  }

  // Those that have not joined by now are not waited for: there is nothing left for them.
  void close() {
    round.fetch_and(~kOpen);
    const auto left = [&] { return (round & kJoined) == 0; };
    if (look_for(left)) return;
    std::unique_lock lock(mutex);
    caller_sleeps.exchange(true);  // as in parallel_for()
    done.wait(lock, left);
    caller_sleeps = false;
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  state_->size = std::max(threads, 1);
  state_->patient = state_->size <= available_cores();
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
  State& state = *state_;
  if (inside_pool || state.size == 1 || items == 1) {
    for (std::size_t item = 0; item < items; ++item) work(item, 0);
    return;
  }
  state.work = &work;
  state.items = items;
  state.next = 0;
  state.error = nullptr;
  // Before the look at who sleeps: an exchange, since qemu lets a load pass the plain store of aarch64 that
  // is to stay before it.
  state.round.exchange((number_of(state.round) + 1) << 32 | kOpen);
  if (state.sleepers > 0) {  // it counted itself before it looked at the round for the last time
    { const std::lock_guard lock(state.mutex); }
    state.start.notify_all();
  }
  state.drain(0);
  state.close();
  if (state.error) std::rethrow_exception(state.error);
}

}  // namespace llmq

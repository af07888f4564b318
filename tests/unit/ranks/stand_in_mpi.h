// A stand-in for the MPI plug-in: its table over threads of this process. It counts what a call got at most.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "ranks/mpi_ranks.h"
#include "ranks/thread_ranks.h"

namespace llmq::testing {

class StandInMpi {
 public:
  static StandInMpi& get() {
    static StandInMpi one;
    return one;
  }

  // Of the calling thread.
  static Ranks*& ranks() {
    static thread_local Ranks* mine = nullptr;
    return mine;
  }

  void begin_again() {
    mail_.clear();
    most_ = 0;
  }
  std::uint64_t most() const { return most_; }
  void count(std::uint64_t bytes) {
    for (std::uint64_t seen = most_; seen < bytes && !most_.compare_exchange_weak(seen, bytes);) continue;
  }

  void post(int to, RankBytes bytes) {
    const std::lock_guard lock(mutex_);
    mail_[{ranks()->rank(), to}].push_back(std::move(bytes));
    changed_.notify_all();
  }
  RankBytes fetch(int from) {
    std::unique_lock lock(mutex_);
    std::deque<RankBytes>& letters = mail_[{from, ranks()->rank()}];
    changed_.wait(lock, [&] { return !letters.empty(); });
    RankBytes first = std::move(letters.front());
    letters.pop_front();
    return first;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::deque<RankBytes>> mail_;
  std::atomic<std::uint64_t> most_ = 0;
};

inline LlmqMpiTable stand_in_table() {
  LlmqMpiTable table = {};
  table.version = kMpiTableVersion;
  table.library = [] { return "Stand-in MPI v1.2, ident: 3, and more\nand more"; };
  table.failure = [] { return "the wire was cut"; };
  table.begin = [](int (*)(void*), void*, int* rank, int* size) {
    *rank = StandInMpi::ranks()->rank();
    *size = StandInMpi::ranks()->size();
    return kMpiDone;
  };
  table.sum_to = [](int owner, std::int64_t* values, std::uint64_t count) {
    StandInMpi::get().count(count * sizeof(std::int64_t));
    StandInMpi::ranks()->sum_to(owner, std::span(values, count));
    return kMpiDone;
  };
  table.broadcast = [](int from, void* bytes, std::uint64_t count) {
    StandInMpi::get().count(count);
    StandInMpi::ranks()->broadcast(from, std::span(static_cast<std::byte*>(bytes), count));
    return kMpiDone;
  };
  table.send = [](int to, const void* bytes, std::uint64_t count) {
    StandInMpi::get().count(count);
    const auto* from = static_cast<const std::byte*>(bytes);
    StandInMpi::get().post(to, RankBytes(from, from + count));
    return kMpiDone;
  };
  table.receive = [](int from, void* bytes, std::uint64_t count) {
    const RankBytes letter = StandInMpi::get().fetch(from);
    if (letter.size() != count) return kMpiFailed;
    std::copy(letter.begin(), letter.end(), static_cast<std::byte*>(bytes));
    return kMpiDone;
  };
  table.barrier = [] {
    StandInMpi::ranks()->barrier();
    return kMpiDone;
  };
  table.end = [] { return kMpiDone; };
  return table;
}

// work() on each of `size` ranks, whose calls of the table get `most` bytes at most.
inline void run_over_stand_in(int size, std::size_t most, const std::function<void(MpiRanks&)>& work) {
  static const LlmqMpiTable table = stand_in_table();
  StandInMpi::get().begin_again();
  run_as_ranks(size, [&](Ranks& threads) {
    StandInMpi::ranks() = &threads;
    MpiRanks ranks(
        table, [] {}, most);
    work(ranks);
  });
}

}  // namespace llmq::testing

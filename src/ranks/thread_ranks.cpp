// A verb is two meetings of all threads: before the first each says what it gives, between the two each takes
// what it needs, and after the second nobody looks at another's memory.
#include "ranks/thread_ranks.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "base/error.h"

namespace llmq {
namespace {

// Ends a thread that waits for one that failed.
struct OtherRankFailed {};

// What a rank gives to a verb.
struct Given {
  std::string verb;  // with what all have to agree on: "sum_to(1) of 20 values"
  const void* data = nullptr;
  std::size_t bytes = 0;
};

class Meeting {
 public:
  explicit Meeting(int size) : given_(static_cast<std::size_t>(size)) {}

  int size() const { return static_cast<int>(given_.size()); }
  const Given& of(int rank) const { return given_[static_cast<std::size_t>(rank)]; }

  void give(int rank, Given given) {
    given_[static_cast<std::size_t>(rank)] = std::move(given);
    meet();
    for (const Given& other : given_)
      if (other.verb != given_.front().verb)
        fail(ErrorKind::kInternal, "ranks do not do the same: {} and {}", given_.front().verb, other.verb);
  }

  void meet() {
    std::unique_lock lock(mutex_);
    if (++here_ == given_.size()) {
      here_ = 0;
      ++met_;
      changed_.notify_all();
      return;
    }
    const std::size_t before = met_;
    changed_.wait(lock, [&] { return met_ != before || stopped_ || ended_; });
    if (met_ != before) return;
    if (stopped_) throw OtherRankFailed{};
    fail(ErrorKind::kInternal, "ranks do not do the same: one has ended, and another waits for it");
  }

  void end() {  // of a rank that has done its work
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Given> given_;
  std::size_t here_ = 0, met_ = 0;
  bool stopped_ = false, ended_ = false;
};

class ThreadRank final : public Ranks {
 public:
  ThreadRank(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return meeting_.size(); }

  void sum_to(int owner, std::span<std::int64_t> values) override {
    meeting_.give(rank_, {fmt::format("sum_to({}) of {} values", owner, values.size()), values.data(),
                          values.size_bytes()});
    if (rank_ == owner)
      for (int other = 0; other < size(); ++other) {
        if (other == owner) continue;
        const auto* theirs = static_cast<const std::int64_t*>(meeting_.of(other).data);
        for (std::size_t i = 0; i < values.size(); ++i)
          values[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(values[i]) +
                                                static_cast<std::uint64_t>(theirs[i]));
      }
    else
      count(values.size_bytes());
    meeting_.meet();
  }

  void broadcast(int from, std::span<std::byte> bytes) override {
    meeting_.give(rank_,
                  {fmt::format("broadcast({}) of {} bytes", from, bytes.size()), bytes.data(), bytes.size()});
    if (rank_ != from) {
      const auto* theirs = static_cast<const std::byte*>(meeting_.of(from).data);
      std::copy_n(theirs, bytes.size(), bytes.begin());
      count(bytes.size());
    }
    meeting_.meet();
  }

  std::vector<RankBytes> gather(int owner, std::span<const std::byte> bytes) override {
    meeting_.give(rank_, {fmt::format("gather({})", owner), bytes.data(), bytes.size()});
    std::vector<RankBytes> all;
    for (int other = 0; rank_ == owner && other < size(); ++other) {
      const auto* theirs = static_cast<const std::byte*>(meeting_.of(other).data);
      all.emplace_back(theirs, theirs + meeting_.of(other).bytes);
    }
    if (rank_ != owner) count(bytes.size());
    meeting_.meet();
    return all;
  }

  void barrier() override {
    meeting_.give(rank_, {"barrier", nullptr, 0});
    meeting_.meet();
  }

 private:
  Meeting& meeting_;
  const int rank_;
};

}  // namespace

void run_as_ranks(int size, const std::function<void(Ranks&)>& work) {
  Meeting meeting(size);
  std::mutex mutex;
  std::exception_ptr error;
  const auto guarded = [&](const std::function<void()>& call) {
    try {
      call();
    } catch (const OtherRankFailed&) {  // that rank has the error
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      meeting.stop();
    }
  };
  const auto run = [&](int number) {
    guarded([&] {
      ThreadRank rank(meeting, number);
      work(rank);
      meeting.end();
    });
  };
  {
    std::vector<std::jthread> threads;
    guarded([&] {  // a thread that cannot be started is an error of all
      for (int number = 1; number < size; ++number) threads.emplace_back(run, number);
      run(0);
    });
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace llmq

#include "base/ordered_section.h"

#include <exception>
#include <thread>
#include <vector>

namespace llmq {
namespace {

// Ends the work of a thread whose turn does not come because another thread failed.
struct Stopped {};

}  // namespace

void OrderedSection::wait(std::size_t turn) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopped_ || now_ == turn; });
  if (stopped_) throw Stopped{};
}

void OrderedSection::pass() {
  const std::lock_guard lock(mutex_);
  ++now_;
  changed_.notify_all();
}

void OrderedSection::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

void side_by_side(std::size_t count, OrderedSection& turns, const std::function<void(std::size_t)>& work) {
  std::mutex mutex;
  std::exception_ptr error;
  const auto guarded = [&](const std::function<void()>& call) {
    try {
      call();
    } catch (const Stopped&) {  // the thread that failed has the error
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      turns.stop();
    }
  };
  {
    std::vector<std::jthread> threads;
    guarded([&] {  // a thread that cannot be started is an error of all
      for (std::size_t thread = 1; thread < count; ++thread)
        threads.emplace_back([&guarded, &work, thread] { guarded([&] { work(thread); }); });
      work(0);
    });
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace llmq

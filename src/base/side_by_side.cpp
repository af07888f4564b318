#include "base/side_by_side.h"

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace llmq {

void side_by_side(std::size_t count, const std::function<void(std::size_t, const std::atomic<bool>&)>& work) {
  std::atomic<bool> failed = false;
  std::mutex mutex;
  std::exception_ptr error;
  const auto guarded = [&](const std::function<void()>& call) {
    try {
      call();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      failed = true;
    }
  };
  {
    std::vector<std::jthread> threads;
    guarded([&] {  // a thread that cannot be started is an error of all
      for (std::size_t thread = 1; thread < count; ++thread)
        threads.emplace_back([&, thread] { guarded([&] { work(thread, failed); }); });
      work(0, failed);
    });
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace llmq

// One thread that does one piece of work after another, from a queue of limited length.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace llmq {

class WorkQueue {
 public:
  explicit WorkQueue(std::size_t limit) : limit_(limit), thread_([this] { run(); }) {}
  ~WorkQueue() {  // work that has not begun is let go
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  bool push(std::function<void()> work) {  // false, and nothing done, when the queue is full
    {
      const std::lock_guard lock(mutex_);
      if (stopping_ || queue_.size() >= limit_) return false;
      queue_.push_back(std::move(work));
    }
    wake_.notify_one();
    return true;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  std::size_t limit_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace llmq

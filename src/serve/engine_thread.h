// The one thread that owns the engine: takes requests from a queue of limited length, steps, and hands out
// what they get.
//
// A request given up (its client left) is cancelled before the next step begins, so that its pages are free
// within one step.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/request_engine.h"
#include "serve/metrics.h"

namespace llmq {

// Who gets the answers of a group of requests. All calls come from the engine's thread, in this order:
// accepted() started() event()... or one refused() or failed() instead of what is left.
class GenerationSink {
 public:
  using Time = std::chrono::steady_clock::time_point;
  virtual ~GenerationSink() = default;
  virtual void accepted(std::uint64_t first) = 0;  // the id of the group's first request
  virtual void refused(const GenerationRefusal& refusal) = 0;
  virtual void started(std::uint64_t id, Time now) = 0;  // each request once: until now it waited
  virtual void event(const GenerationEvent& event, Time now) = 0;
  virtual void failed(const std::string& message) = 0;
};

class EngineThread {
 public:
  // `engine` lives longer, and only this thread uses it. `on_failure` is called once, when a step threw:
  // nothing can be answered any more.
  EngineThread(RequestEngine& engine, std::size_t max_queue, Metrics& metrics,
               std::function<void(const std::string&)> on_failure);
  ~EngineThread();  // what is not finished is let go
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  static constexpr std::uint64_t kRefused = 0;
  // Requests that are accepted or refused together. Their ids are given here: the first of consecutive ones
  // is returned; kRefused when the queue is full or the engine has failed.
  std::uint64_t submit(std::vector<GenerationRequest> requests, std::shared_ptr<GenerationSink> sink);
  void cancel(std::uint64_t first, std::size_t requests);
  // Has `act` done on the engine's thread, behind the requests that were submitted before and in front of
  // those that come after; it throws nothing. False, and not done, when the queue is full or the engine has
  // failed.
  bool between_steps(std::function<void(RequestEngine&)> act);

 private:
  struct Message {
    std::vector<GenerationRequest> requests;  // empty: cancel
    std::shared_ptr<GenerationSink> sink;
    std::uint64_t first = 0;
    std::size_t count = 0;
    std::function<void(RequestEngine&)> act;  // instead of all of that
  };
  struct Ticket {
    std::shared_ptr<GenerationSink> sink;
    int unfinished = 0;
  };
  void run();
  bool take(std::vector<Message>& messages);
  void admit(Message& message);
  void step();
  void fail_all(const std::string& message);

  RequestEngine& engine_;
  std::size_t max_queue_;
  Metrics& metrics_;
  std::function<void(const std::string&)> on_failure_;
  std::map<std::uint64_t, Ticket> tickets_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Message> inbox_;
  std::size_t queued_ = 0;
  std::uint64_t next_ = 1;
  bool stopping_ = false, failed_ = false;
  std::thread thread_;
};

}  // namespace llmq

#include "serve/engine_thread.h"

#include <exception>
#include <utility>

namespace llmq {

EngineThread::EngineThread(RequestEngine& engine, std::size_t max_queue, Metrics& metrics,
                           std::function<void(const std::string&)> on_failure)
    : engine_(engine),
      max_queue_(max_queue),
      metrics_(metrics),
      on_failure_(std::move(on_failure)),
      thread_([this] { run(); }) {}

EngineThread::~EngineThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

std::uint64_t EngineThread::submit(std::vector<GenerationRequest> requests,
                                   std::shared_ptr<GenerationSink> sink) {
  std::uint64_t first = kRefused;
  {
    const std::lock_guard lock(mutex_);
    if (failed_ || stopping_ || queued_ + requests.size() > max_queue_) return kRefused;
    first = next_;
    next_ += requests.size();
    for (std::size_t i = 0; i < requests.size(); ++i) requests[i].id = first + i;
    queued_ += requests.size();
    const std::size_t count = requests.size();
    inbox_.push_back({std::move(requests), std::move(sink), first, count, nullptr});
  }
  wake_.notify_one();
  return first;
}

void EngineThread::cancel(std::uint64_t first, std::size_t requests) {
  {
    const std::lock_guard lock(mutex_);
    if (failed_ || stopping_) return;
    inbox_.push_back({{}, nullptr, first, requests, nullptr});
  }
  wake_.notify_one();
}

bool EngineThread::between_steps(std::function<void(RequestEngine&)> act) {
  {
    const std::lock_guard lock(mutex_);
    if (failed_ || stopping_ || queued_ >= max_queue_) return false;
    ++queued_;
    inbox_.push_back({{}, nullptr, 0, 0, std::move(act)});
  }
  wake_.notify_one();
  return true;
}

// What came in; waits for something where the engine has nothing to do. False at the end.
bool EngineThread::take(std::vector<Message>& messages) {
  messages.clear();
  std::unique_lock lock(mutex_);
  if (engine_.idle()) wake_.wait(lock, [this] { return stopping_ || !inbox_.empty(); });
  if (stopping_) return false;
  messages.swap(inbox_);
  queued_ = 0;
  return true;
}

void EngineThread::admit(Message& message) {
  if (message.act) {
    message.act(engine_);
    return metrics_.engine(engine_.statistics());
  }
  if (message.requests.empty()) {
    for (std::uint64_t id = message.first; id < message.first + message.count; ++id) engine_.cancel(id);
    return;
  }
  for (std::size_t i = 0; i < message.requests.size(); ++i) {
    const int answers = message.requests[i].n;
    if (const auto refusal = engine_.submit(std::move(message.requests[i]))) {
      for (std::uint64_t id = message.first; id < message.first + i; ++id) {
        engine_.cancel(id);
        tickets_.erase(id);
      }
      return message.sink->refused(*refusal);
    }
    tickets_[message.first + i] = {message.sink, answers};
  }
  message.sink->accepted(message.first);
}

void EngineThread::step() {
  const auto begun = std::chrono::steady_clock::now();
  const std::vector<GenerationEvent>& events = engine_.step();
  const auto now = std::chrono::steady_clock::now();
  metrics_.engine(engine_.statistics());  // who has an answer finds it counted
  for (const std::uint64_t id : engine_.started())
    if (const auto ticket = tickets_.find(id); ticket != tickets_.end())
      ticket->second.sink->started(id, begun);
  for (const GenerationEvent& event : events) {
    const auto ticket = tickets_.find(event.id);
    if (ticket == tickets_.end()) continue;  // of a group that was refused
    const std::shared_ptr<GenerationSink> sink = ticket->second.sink;
    if (event.finish && --ticket->second.unfinished == 0) tickets_.erase(ticket);
    sink->event(event, now);
  }
}

void EngineThread::fail_all(const std::string& message) {
  std::vector<Message> messages;
  {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    messages.swap(inbox_);
  }
  std::map<GenerationSink*, std::shared_ptr<GenerationSink>> sinks;
  for (auto& entry : tickets_) sinks.emplace(entry.second.sink.get(), entry.second.sink);
  for (Message& one : messages)
    if (one.sink) sinks.emplace(one.sink.get(), one.sink);
  tickets_.clear();
  for (auto& entry : sinks) entry.second->failed(message);
  on_failure_(message);
}

void EngineThread::run() {
  std::vector<Message> messages;
  try {
    while (take(messages)) {
      for (Message& message : messages) admit(message);
      if (!engine_.idle()) step();
    }
  } catch (const std::exception& error) {
    fail_all(error.what());
  }
}

}  // namespace llmq

// An Io that kills its process ahead of the k-th call, or in the middle of it where that is a write: half of
// the bytes are there then.
#pragma once
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "tests/support/counting_io.h"

namespace llmq::testing {

class KillingIo final : public InterceptedIo {
 public:
  explicit KillingIo(int fatal_call) : InterceptedIo(system_io()), fatal_call_(fatal_call) {}
  int calls() const { return calls_; }

 private:
  void before(const char* operation, const Path&) override {
    const bool due = calls_++ == fatal_call_;
    if (due && std::string_view(operation) != "write") ::kill(::getpid(), SIGKILL);
    torn_ = due;
  }
  void write(File& file, const Path&, std::uint64_t offset, std::span<const std::byte> from) override {
    file.write_at(offset, torn_ ? from.first(from.size() / 2) : from);
    if (torn_) ::kill(::getpid(), SIGKILL);
  }

  int fatal_call_, calls_ = 0;
  bool torn_ = false;
};

// Runs `work` in a process of its own; whether it came to its end. Call from a process of one thread.
inline bool survives(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      work();
    } catch (...) {
      ::_exit(3);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 3) throw std::runtime_error("the work failed");
  return WIFEXITED(status);
}

}  // namespace llmq::testing

// SIGINT and SIGTERM as an exception at the next step: files are cleaned up by destructors, then exit 130 or
// 143. A second signal ends at once.
#pragma once
#include <exception>

namespace llmq::tools {

struct Interrupted : std::exception {
  explicit Interrupted(int number) : signal(number) {}
  const char* what() const noexcept override { return "interrupted"; }
  int signal;
};

void watch_signals();  // from now on; before that, signals end the process at once
void throw_if_interrupted();

}  // namespace llmq::tools

#include "tools/interrupt.h"

#include <csignal>

namespace llmq::tools {
namespace {

volatile std::sig_atomic_t pending = 0;

void remember(int number) {
  pending = number;
  std::signal(number, SIG_DFL);  // the second one is final
}

}  // namespace

void watch_signals() {
  std::signal(SIGINT, remember);
  std::signal(SIGTERM, remember);
}

void throw_if_interrupted() {
  if (pending != 0) throw Interrupted(pending);
}

}  // namespace llmq::tools

// What a piece of work asked of the heap and of the system: counters that do not depend on how busy a machine
// is.
#pragma once
#include <cstdint>

namespace llmq::testing {

std::uint64_t allocations();  // of this process so far: malloc and its relatives, which operator new calls

// From now on every system call of every thread that there is now is counted, and then made. False where the
// system does not let a process watch itself (seccomp).
bool watch_system_calls();
std::uint64_t system_calls();
long last_system_call();  // its number; -1 before the first

}  // namespace llmq::testing

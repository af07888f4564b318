// What the MPI plug-in offers to the program: functions of C in a table with a version number. Neither side
// sees a type of the other's, so that a program and a plug-in of different compilers understand each other.
//
// A function returns kMpiDone, kMpiFailed (then failure() has MPI's words) or kMpiStopped (`waiting` said
// so). Counts are at most 2^31 - 1 bytes. All of them are called by the thread that called begin().
#pragma once
#include <cstdint>

extern "C" {

struct LlmqMpiTable {
  std::uint32_t version;     // kMpiTableVersion of what the plug-in was compiled with
  const char* (*library)();  // "Open MPI v4.1.4, ...", as MPI says it; before begin(), too
  const char* (*failure)();  // of the call before
  // Begins MPI. `waiting(context)` is called again and again while a function waits; other than 0 ends it.
  int (*begin)(int (*waiting)(void*), void* context, int* rank, int* size);
  int (*sum_to)(int owner, std::int64_t* values, std::uint64_t count);
  int (*broadcast)(int from, void* bytes, std::uint64_t count);
  int (*send)(int to, const void* bytes, std::uint64_t count);
  int (*receive)(int from, void* bytes, std::uint64_t count);
  int (*barrier)();
  int (*end)();               // waits for all ranks
  void (*abandon)(int code);  // ends all ranks of the job; does not return
};

// The plug-in's one symbol, by this type and name.
using LlmqMpiTableFunction = const LlmqMpiTable* (*)();

}  // extern "C"

namespace llmq {
inline constexpr std::uint32_t kMpiTableVersion = 1;
inline constexpr int kMpiDone = 0, kMpiFailed = 1, kMpiStopped = 2;
inline constexpr const char* kMpiTableSymbol = "llmq_mpi_table";
}  // namespace llmq

// libllmq_mpi.so: the table of ranks/mpi_table.h over the MPI of this site. MPI-3 and nothing newer, so that
// Open MPI, MPICH and those of their kin compile it; the only file that sees mpi.h.
//
// MPI's own waiting takes a core. Here every call is a non-blocking one that is asked for: as fast as it goes
// for about a millisecond, then ten thousand times a second.
#include <mpi.h>
#include <sched.h>
#include <time.h>

#include <string>

#include "ranks/mpi_table.h"

namespace {

using llmq::kMpiDone;
using llmq::kMpiFailed;
using llmq::kMpiStopped;

constexpr int kTag = 30, kTriesBeforeSleep = 2000;
constexpr timespec kSleep = {0, 100000};

MPI_Comm comm = MPI_COMM_NULL;  // the ranks, apart from whatever else uses MPI in this process
int (*waiting)(void*) = nullptr;
void* waiting_context = nullptr;
std::string words;

int done_or_failed(int code) {
  if (code == MPI_SUCCESS) return kMpiDone;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  words = MPI_Error_string(code, text, &length) == MPI_SUCCESS
              ? std::string(text, static_cast<std::size_t>(length))
              : "error " + std::to_string(code);
  return kMpiFailed;
}

// Until the request is done. One that was stopped stays open: what follows is abandon().
int wait_for(int code, MPI_Request& request) {
  int tries = 0;
  while (code == MPI_SUCCESS) {
    int done = 0;
    code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (code == MPI_SUCCESS && done) return kMpiDone;
    if (waiting(waiting_context) != 0) return kMpiStopped;
    if (tries < kTriesBeforeSleep) {  // and no further: a rank may wait for days
      ++tries;
      sched_yield();
    } else {
      nanosleep(&kSleep, nullptr);
    }
  }
  return done_or_failed(code);
}

const char* library() {
  static char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "an MPI of no name";
  return text;
}

const char* failure() { return words.c_str(); }

int begin(int (*ask)(void*), void* context, int* rank, int* size) {
  waiting = ask;
  waiting_context = context;
  int given = 0;
  int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &given);
  if (code == MPI_SUCCESS && given < MPI_THREAD_FUNNELED) {
    words = "it cannot be used beside other threads (MPI_THREAD_FUNNELED)";
    return kMpiFailed;
  }
  if (code == MPI_SUCCESS) code = MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  if (code == MPI_SUCCESS) code = MPI_Comm_rank(comm, rank);
  if (code == MPI_SUCCESS) code = MPI_Comm_size(comm, size);
  return done_or_failed(code);
}

int sum_to(int owner, std::int64_t* values, std::uint64_t count) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Ireduce(rank == owner ? MPI_IN_PLACE : values, rank == owner ? values : nullptr,
                               static_cast<int>(count), MPI_INT64_T, MPI_SUM, owner, comm, &request);
  return wait_for(code, request);
}

int broadcast(int from, void* bytes, std::uint64_t count) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Ibcast(bytes, static_cast<int>(count), MPI_BYTE, from, comm, &request);
  return wait_for(code, request);
}

int send(int to, const void* bytes, std::uint64_t count) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Isend(bytes, static_cast<int>(count), MPI_BYTE, to, kTag, comm, &request);
  return wait_for(code, request);
}

int receive(int from, void* bytes, std::uint64_t count) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Irecv(bytes, static_cast<int>(count), MPI_BYTE, from, kTag, comm, &request);
  return wait_for(code, request);
}

int barrier() {
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Ibarrier(comm, &request);
  return wait_for(code, request);
}

int end() {
  if (const int waited = barrier(); waited != kMpiDone) return waited;
  return done_or_failed(MPI_Finalize());
}

void abandon(int code) { MPI_Abort(MPI_COMM_WORLD, code); }

constexpr LlmqMpiTable kTable = {
    llmq::kMpiTableVersion, library, failure, begin, sum_to, broadcast, send, receive, barrier, end, abandon};

}  // namespace

extern "C" __attribute__((visibility("default"))) const LlmqMpiTable* llmq_mpi_table() { return &kTable; }

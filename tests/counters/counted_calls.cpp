// malloc and its relatives stand in front of the C library's; system calls come by way of a seccomp filter
// that turns each into SIGSYS. The handler counts it and makes it itself, from the one instruction that the
// filter lets through. x86-64 and glibc.
#include "counters/counted_calls.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace {

std::atomic<std::uint64_t> heap_calls{0}, kernel_calls{0};
std::atomic<long> last_number{-1};

}  // namespace

extern "C" {

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) { return ++heap_calls, __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) { return ++heap_calls, __libc_calloc(count, bytes); }
void* realloc(void* old, size_t bytes) { return ++heap_calls, __libc_realloc(old, bytes); }
void* memalign(size_t alignment, size_t bytes) { return ++heap_calls, __libc_memalign(alignment, bytes); }
void* aligned_alloc(size_t alignment, size_t bytes) {
  return ++heap_calls, __libc_memalign(alignment, bytes);
}

// llmq_call(number, a, b, c, d, e, f); the filter knows the address after its instruction.
long llmq_call(long, long, long, long, long, long, long);
extern const char llmq_call_return[];
asm(R"(
  .text
  .globl llmq_call, llmq_call_return
llmq_call:
  movq %rdi, %rax
  movq %rsi, %rdi
  movq %rdx, %rsi
  movq %rcx, %rdx
  movq %r8, %r10
  movq %r9, %r8
  movq 8(%rsp), %r9
  syscall
llmq_call_return:
  ret
)");

}  // extern "C"

namespace llmq::testing {
namespace {

void count_and_call(int, siginfo_t*, void* context) {
  greg_t* const r = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  ++kernel_calls;
  last_number = r[REG_RAX];
  r[REG_RAX] = llmq_call(r[REG_RAX], r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8], r[REG_R9]);
}

// Whether SIGSYS reaches every thread. A thread that has not begun yet has all signals blocked: its first
// system call under the filter would be the process's end.
bool every_thread_takes_the_signal() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    for (std::string word; status >> word;)
      if (word == "SigBlk:" && status >> word && (std::stoull(word, nullptr, 16) >> (SIGSYS - 1) & 1) != 0)
        return false;
  }
  return true;
}

}  // namespace

std::uint64_t allocations() { return heap_calls; }
std::uint64_t system_calls() { return kernel_calls; }
long last_system_call() { return last_number; }

bool watch_system_calls() {
  static bool watching = false;
  if (watching) return true;
  struct sigaction action = {};
  action.sa_sigaction = count_and_call;
  action.sa_flags = SA_SIGINFO;
  if (sigaction(SIGSYS, &action, nullptr) != 0) return false;
  while (!every_thread_takes_the_signal()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto after = reinterpret_cast<std::uint64_t>(llmq_call_return);
  const sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, instruction_pointer)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(after), 0, 2),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, instruction_pointer) + 4),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(after >> 32), 3, 0),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof filter / sizeof *filter, const_cast<sock_filter*>(filter)};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  watching = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
  return watching;
}

}  // namespace llmq::testing

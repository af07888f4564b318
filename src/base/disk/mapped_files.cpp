#include "base/disk/mapped_files.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

namespace llmq {
namespace {

// More files than a checkpoint has shards; those beyond it are mapped all the same, and end like any program
// does.
constexpr int kSlots = 4096;
constexpr int kFailed = 1;  // exit_code(ErrorKind::kIo)

struct Slot {
  std::atomic<std::uintptr_t> begin{0}, end{0};  // begin 0: free
  std::atomic<const std::string*> text{nullptr};
};
static_assert(std::atomic<std::uintptr_t>::is_always_lock_free &&
              std::atomic<const std::string*>::is_always_lock_free);

std::array<Slot, kSlots> slots;
std::mutex taking;
int descriptor = -1;
std::string (*text_of)(const Error&) = nullptr;

void end_of_a_mapped_file(int signal, siginfo_t* what, void*) {
  const auto address = reinterpret_cast<std::uintptr_t>(what->si_addr);
  for (const Slot& slot : slots) {
    const std::uintptr_t begin = slot.begin.load(std::memory_order_acquire);
    if (begin == 0 || address < begin || address >= slot.end.load(std::memory_order_relaxed)) continue;
    const std::string& text = *slot.text.load(std::memory_order_relaxed);
    static_cast<void>(!::write(descriptor, text.data(), text.size()));
    ::_exit(kFailed);
  }
  ::signal(signal, SIG_DFL);  // the access is made again when this returns, and ends as it would have
}

}  // namespace

void explain_files_that_end(int to, std::string (*text)(const Error&)) {
  descriptor = to;
  text_of = text;
  struct sigaction action {};
  action.sa_sigaction = end_of_a_mapped_file;
  action.sa_flags = SA_SIGINFO;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

MappedRange::MappedRange(const void* address, std::size_t size, const std::string& file) {
  if (text_of == nullptr || size == 0) return;
  const Error error(ErrorKind::kIo, {"ended before its mapped size while it was read, or its disk failed",
                                     file,
                                     {},
                                     "put it back as it was and run the same command again"});
  const std::lock_guard lock(taking);
  for (int i = 0; i < kSlots; ++i) {
    Slot& slot = slots[static_cast<std::size_t>(i)];
    if (slot.begin.load(std::memory_order_relaxed) != 0) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    slot.text = new std::string(text_of(error));
    slot.end = begin + size;
    slot.begin.store(begin, std::memory_order_release);
    slot_ = i;
    return;
  }
}

MappedRange::~MappedRange() {
  if (slot_ < 0) return;
  const std::lock_guard lock(taking);
  Slot& slot = slots[static_cast<std::size_t>(slot_)];
  slot.begin.store(0, std::memory_order_release);
  delete slot.text.exchange(nullptr);
}

}  // namespace llmq

#include "base/zeroed_numbers.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace llmq {
namespace {

// from here on glibc's heap maps pages too, and gives them back at once
constexpr std::size_t kLarge = std::size_t{32} << 20;

}  // namespace

void* take_zeroed(std::size_t bytes) {
  if (bytes < kLarge) {
    void* const pointer = std::calloc(std::max<std::size_t>(bytes, 1), 1);
    if (pointer == nullptr) throw std::bad_alloc();
    return pointer;
  }
  void* const pointer = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pointer == MAP_FAILED) throw std::bad_alloc();
  madvise(pointer, bytes, MADV_HUGEPAGE);  // where the system has none, small pages do the same more slowly
  return pointer;
}

void give_zeroed(void* pointer, std::size_t bytes) noexcept {
  if (bytes < kLarge)
    std::free(pointer);
  else
    munmap(pointer, bytes);
}

}  // namespace llmq

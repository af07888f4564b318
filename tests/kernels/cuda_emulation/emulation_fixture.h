// Memory and numbers for kernels on the host: 16-byte aligned, exactly as long as it must be, so that a
// sanitizer sees a step beyond.
#pragma once
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "kernels/backend/backend_fixture.h"

namespace llmq::cuda {

struct AlignedWords {
  template <class T>
  struct Allocator {
    using value_type = T;
    Allocator() = default;
    template <class U>
    Allocator(const Allocator<U>&) {}
    T* allocate(std::size_t n) {
      return static_cast<T*>(::operator new (n * sizeof(T), std::align_val_t{16}));
    }
    void deallocate(T* p, std::size_t) { ::operator delete (p, std::align_val_t{16}); }
    bool operator==(const Allocator&) const { return true; }
  };
  std::vector<std::uint32_t, Allocator<std::uint32_t>> words;
};

}  // namespace llmq::cuda

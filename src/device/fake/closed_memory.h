// Memory of a device that is not there: pages closed to the host (PROT_NONE) except while an Opening lives.
//
// A host access outside an operation ends in SIGSEGV, as on a discrete GPU it would end in garbage or a
// fault; a host pointer handed to an operation is found by address and refused. Each allocation ends at a
// closed guard page, so that overruns of 64 bytes or more fault too. Cost: two system calls per allocation
// and two per tensor of an operation.
#pragma once
#include <initializer_list>
#include <map>
#include <mutex>
#include <vector>

#include "tensor/buffer.h"

namespace llmq {

inline constexpr Device kFakeDevice{DeviceKind::kFake, 0};

class ClosedMemory final : public MemoryResource {
 public:
  ~ClosedMemory() override;
  void* allocate(std::size_t bytes) override;
  void deallocate(void* pointer, std::size_t bytes) noexcept override;
  Device device() const override { return kFakeDevice; }
  bool owns(const void* pointer) const;

  // Opens the allocations the views lie in (empty views aside); closes all when it ends. One at a time.
  // Error(kInternal) naming the operation when a view is not of this device, or not inside one allocation
  // whatever it claims.
  class Opening {
   public:
    Opening(ClosedMemory& memory, const char* operation, std::initializer_list<const TensorView*> views);
    ~Opening();
    Opening(const Opening&) = delete;
    Opening& operator=(const Opening&) = delete;

   private:
    ClosedMemory& memory_;
    std::unique_lock<std::mutex> turn_;
    std::vector<const void*> opened_;
  };

 private:
  struct Region {
    char* base = nullptr;    // first page
    std::size_t open = 0;    // bytes that may be opened, whole pages
    std::size_t mapped = 0;  // with the guard page
  };
  const Region* find(const void* pointer, std::size_t bytes) const;  // the region that holds all of it
  mutable std::mutex table_;
  std::mutex turn_;
  std::map<const char*, Region> regions_;  // by base
};

}  // namespace llmq

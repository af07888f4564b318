// Memory of a device of the CUDA runtime, and its two queues: one that orders all work, one for copies that
// need not wait their turn.
//
// Memory is allocated and freed in the order of a queue (cudaMallocAsync) and kept by the pool, so that a
// block's intermediates cost no call to the driver.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tensor/buffer.h"

namespace llmq {

std::string words_of(cudaError_t error);
// Error(kDevice) naming the call and what it was for.
void check_cuda(cudaError_t error, const char* call, const std::string& purpose);

class Event {
 public:
  Event();
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  // `later` goes on when what is in `earlier` now is done.
  void order(cudaStream_t earlier, cudaStream_t later, const char* purpose);
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Lives as long as the last buffer; owns the queues.
class PoolMemory final : public MemoryResource {
 public:
  explicit PoolMemory(int index);
  ~PoolMemory() override;
  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;

  void* allocate(std::size_t bytes) override { return allocate_in(stream_, bytes); }
  void deallocate(void* pointer, std::size_t) noexcept override;
  Device device() const override { return {DeviceKind::kCuda, index_}; }
  void* allocate_in(cudaStream_t stream, std::size_t bytes);
  // less a reserve for kernels, workspaces of libraries and gaps of the pool
  std::uint64_t free_bytes() const;
  std::uint64_t peak_bytes() const;
  void trim();  // gives what is free to the driver, for libraries that do not ask this pool
  // Whether kernels and copies of this device may touch memory of `owner`: asked once for a pair, and
  // arranged.
  bool reaches(const PoolMemory& owner);

  cudaStream_t stream() const { return stream_; }
  cudaStream_t copies() const { return copies_; }
  void use() const;  // makes it the calling thread's device

 private:
  int index_;
  cudaMemPool_t pool_ = nullptr;
  cudaStream_t stream_ = nullptr, copies_ = nullptr;
  std::vector<signed char> reached_;  // by index: -1 not asked
};

// Buffers that are born in the queue of copies and die in the other, which by then has waited for it.
class CopiedMemory final : public MemoryResource {
 public:
  explicit CopiedMemory(std::shared_ptr<PoolMemory> pool) : pool_(std::move(pool)) {}
  void* allocate(std::size_t bytes) override { return pool_->allocate_in(pool_->copies(), bytes); }
  void deallocate(void* pointer, std::size_t bytes) noexcept override { pool_->deallocate(pointer, bytes); }
  Device device() const override { return pool_->device(); }

 private:
  std::shared_ptr<PoolMemory> pool_;
};

// Pinned slots and the end of the copy that reads each.
class PinnedMemory {
 public:
  static constexpr std::size_t kSlots = 4, kSlotBytes = std::size_t{8} << 20;
  PinnedMemory();
  ~PinnedMemory() { cudaFreeHost(memory_); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  std::vector<char*> slots() const;
  cudaEvent_t ended(std::size_t slot) const { return ended_[slot].get(); }

 private:
  char* memory_ = nullptr;
  Event ended_[kSlots];
};

}  // namespace llmq

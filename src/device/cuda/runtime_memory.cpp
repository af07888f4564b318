#include "device/cuda/runtime_memory.h"

#include "base/amount_text.h"
#include "base/error.h"

namespace llmq {
namespace {

constexpr std::uint64_t kReserve = std::uint64_t{512} << 20;  // not measured

}  // namespace

std::string words_of(cudaError_t error) {
  return fmt::format("{} ({})", cudaGetErrorString(error), cudaGetErrorName(error));
}

void check_cuda(cudaError_t error, const char* call, const std::string& purpose) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // else the next launch would report it as its own
  fail(ErrorKind::kDevice, "{} failed for {}: {}", call, purpose, words_of(error));
}

Event::Event() {
  check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags",
             "the backend");
}

void Event::order(cudaStream_t earlier, cudaStream_t later, const char* purpose) {
  check_cuda(cudaEventRecord(event_, earlier), "cudaEventRecord", purpose);
  check_cuda(cudaStreamWaitEvent(later, event_, 0), "cudaStreamWaitEvent", purpose);
}

PoolMemory::PoolMemory(int index) : index_(index) {
  use();
  for (cudaStream_t* stream : {&stream_, &copies_})
    check_cuda(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags",
               "the backend");
  check_cuda(cudaDeviceGetDefaultMemPool(&pool_, index), "cudaDeviceGetDefaultMemPool", "the backend");
  std::uint64_t keep = UINT64_MAX;
  check_cuda(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep),
             "cudaMemPoolSetAttribute", "the backend");
}

PoolMemory::~PoolMemory() {
  cudaSetDevice(index_);
  for (cudaStream_t stream : {copies_, stream_}) {
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
}

void* PoolMemory::allocate_in(cudaStream_t stream, std::size_t bytes) {
  use();
  void* pointer = nullptr;
  cudaError_t error = cudaMallocAsync(&pointer, bytes == 0 ? 1 : bytes, stream);
  // what was freed is free when the queues have come to it, and in one piece when the pool has let go of it
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    trim();
    error = cudaMallocAsync(&pointer, bytes == 0 ? 1 : bytes, stream);
  }
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    std::size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    fail(ErrorKind::kResource, "cuda:{} has no room for {} more: {} of {} are free", index_,
         bytes_text(bytes), bytes_text(free), bytes_text(total));
  }
  check_cuda(error, "cudaMallocAsync", fmt::format("{} bytes", bytes));
  return pointer;
}

std::uint64_t PoolMemory::free_bytes() const {
  use();
  std::size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo", fmt::format("cuda:{}", index_));
  return free > kReserve ? free - kReserve : 0;
}

void PoolMemory::deallocate(void* pointer, std::size_t) noexcept {
  cudaSetDevice(index_);
  // what is broken shows at the next call that may report it
  if (cudaFreeAsync(pointer, stream_) != cudaSuccess) cudaGetLastError();
}

void PoolMemory::trim() {
  use();
  for (cudaStream_t stream : {copies_, stream_})
    check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize", "the memory that is to be given back");
  check_cuda(cudaMemPoolTrimTo(pool_, 0), "cudaMemPoolTrimTo", "the memory that is to be given back");
}

std::uint64_t PoolMemory::peak_bytes() const {
  std::uint64_t peak = 0;
  check_cuda(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrUsedMemHigh, &peak), "cudaMemPoolGetAttribute",
             "the most memory that was in use");
  return peak;
}

// Memory of a pool is opened to another device by the pool, not by cudaDeviceEnablePeerAccess.
bool PoolMemory::reaches(const PoolMemory& owner) {
  const auto other = static_cast<std::size_t>(owner.index_);
  if (reached_.size() <= other) reached_.resize(other + 1, -1);
  if (reached_[other] < 0) {
    int can = 0;
    check_cuda(cudaDeviceCanAccessPeer(&can, index_, owner.index_), "cudaDeviceCanAccessPeer",
               fmt::format("cuda:{} and cuda:{}", index_, owner.index_));
    if (can != 0) {
      cudaMemAccessDesc access{};
      access.location.type = cudaMemLocationTypeDevice;
      access.location.id = index_;
      access.flags = cudaMemAccessFlagsProtReadWrite;
      // in some containers and virtual machines: the host carries it
      if (cudaMemPoolSetAccess(owner.pool_, &access, 1) != cudaSuccess) {
        cudaGetLastError();
        can = 0;
      }
    }
    reached_[other] = can != 0;
  }
  return reached_[other] > 0;
}

void PoolMemory::use() const {
  check_cuda(cudaSetDevice(index_), "cudaSetDevice", fmt::format("cuda:{}", index_));
}

PinnedMemory::PinnedMemory() {
  check_cuda(cudaMallocHost(reinterpret_cast<void**>(&memory_), kSlots * kSlotBytes), "cudaMallocHost",
             fmt::format("{} bytes of staging", kSlots * kSlotBytes));
}

std::vector<char*> PinnedMemory::slots() const {
  std::vector<char*> slots;
  for (std::size_t i = 0; i < kSlots; ++i) slots.push_back(memory_ + i * kSlotBytes);
  return slots;
}

}  // namespace llmq

// A device of the CUDA runtime: one stream that orders everything, a pool of memory on it, pinned memory for what goes up.
//
// Memory is allocated and freed in the stream's order (cudaMallocAsync) and kept by the pool, so that a block's intermediates cost no
// call to the driver. A copy down waits for the stream. Every failure names the call, what it was for and its size.
#include <cuda_runtime_api.h>

#include <mutex>

#include "base/error.h"
#include "device/cuda/cuda_backend.h"
#include "device/cuda/staging_ring.h"

namespace llmq {
namespace {

constexpr std::size_t kStagingSlots = 4, kStagingBytes = std::size_t{8} << 20;
constexpr int kOldestMajor = 7, kOldestMinor = 5;  // what the kernels are built for (cmake/LlmqCuda.cmake)
constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

std::string words_of(cudaError_t error) { return fmt::format("{} ({})", cudaGetErrorString(error), cudaGetErrorName(error)); }

void check(cudaError_t error, const char* call, const std::string& purpose) {
  if (error != cudaSuccess) fail(ErrorKind::kDevice, "{} failed for {}: {}", call, purpose, words_of(error));
}

[[noreturn]] void refuse(const std::string& message) {
  fail(ErrorKind::kUnsupported, ErrorDetail{message, {}, "--device", "use --device cpu"});
}

// The properties of device `index`, or one sentence on why there is none.
cudaDeviceProp device_at(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  const int version = CUDART_VERSION;
  if (error == cudaErrorInsufficientDriver)
    refuse(fmt::format("device cuda:{} is asked for, and this machine has no NVIDIA driver for CUDA {}.{}", index, version / 1000, version % 1000 / 10));
  if (error != cudaSuccess && error != cudaErrorNoDevice)
    refuse(fmt::format("device cuda:{} is asked for, and the driver answers: {}", index, words_of(error)));
  if (count == 0) refuse(fmt::format("device cuda:{} is asked for, and this machine has no CUDA device", index));
  if (index >= count)
    refuse(fmt::format("device cuda:{} is asked for, and this machine has {}", index, count == 1 ? "cuda:0 alone" : fmt::format("cuda:0 to cuda:{}", count - 1)));
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties", fmt::format("cuda:{}", index));
  if (properties.major < kOldestMajor || (properties.major == kOldestMajor && properties.minor < kOldestMinor))
    refuse(fmt::format("cuda:{} is a {} of compute capability {}.{}; {}.{} is the least that this llmq is built for", index, properties.name,
                       properties.major, properties.minor, kOldestMajor, kOldestMinor));
  return properties;
}

// Lives as long as the last buffer; owns the stream.
class PoolMemory final : public MemoryResource {
 public:
  explicit PoolMemory(int index) : index_(index) {
    use();
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", "the backend");
    cudaMemPool_t pool = nullptr;
    check(cudaDeviceGetDefaultMemPool(&pool, index), "cudaDeviceGetDefaultMemPool", "the backend");
    std::uint64_t keep = UINT64_MAX;
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "cudaMemPoolSetAttribute", "the backend");
  }
  ~PoolMemory() override {
    cudaSetDevice(index_);
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;

  void* allocate(std::size_t bytes) override {
    use();
    void* pointer = nullptr;
    const cudaError_t error = cudaMallocAsync(&pointer, bytes == 0 ? 1 : bytes, stream_);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      std::size_t free = 0, total = 0;
      cudaMemGetInfo(&free, &total);
      fail(ErrorKind::kResource, "cuda:{} has no room for {} more bytes: {:.2f} of {:.2f} GiB are free", index_, bytes, static_cast<double>(free) / kGib,
           static_cast<double>(total) / kGib);
    }
    check(error, "cudaMallocAsync", fmt::format("{} bytes", bytes));
    return pointer;
  }
  void deallocate(void* pointer, std::size_t) noexcept override {
    cudaSetDevice(index_);
    cudaFreeAsync(pointer, stream_);  // an error that is pending shows at the next call that may report it
  }
  Device device() const override { return {DeviceKind::kCuda, index_}; }
  cudaStream_t stream() const { return stream_; }
  void use() const { check(cudaSetDevice(index_), "cudaSetDevice", fmt::format("cuda:{}", index_)); }

 private:
  int index_;
  cudaStream_t stream_ = nullptr;
};

// Pinned slots and the end of the copy that reads each.
class PinnedMemory {
 public:
  PinnedMemory() {
    check(cudaMallocHost(reinterpret_cast<void**>(&memory_), kStagingSlots * kStagingBytes), "cudaMallocHost",
          fmt::format("{} bytes of staging", kStagingSlots * kStagingBytes));
    for (cudaEvent_t& event : ended_) check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags", "staging");
  }
  ~PinnedMemory() {
    for (cudaEvent_t event : ended_) cudaEventDestroy(event);
    cudaFreeHost(memory_);
  }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  std::vector<char*> slots() const {
    std::vector<char*> slots;
    for (std::size_t i = 0; i < kStagingSlots; ++i) slots.push_back(memory_ + i * kStagingBytes);
    return slots;
  }
  cudaEvent_t ended(std::size_t slot) const { return ended_[slot]; }

 private:
  char* memory_ = nullptr;
  cudaEvent_t ended_[kStagingSlots] = {};
};

class RuntimeDevice final : public CudaDevice {
 public:
  explicit RuntimeDevice(int index)
      : properties_(device_at(index)), memory_(std::make_shared<PoolMemory>(index)), ring_(pinned_.slots(), kStagingBytes) {}
  ~RuntimeDevice() override { cudaStreamSynchronize(memory_->stream()); }  // before the pinned memory goes
  RuntimeDevice(const RuntimeDevice&) = delete;
  RuntimeDevice& operator=(const RuntimeDevice&) = delete;

  std::string name() const override {
    return fmt::format("cuda:{} ({}, sm_{}{})", memory_->device().index, properties_.name, properties_.major, properties_.minor);
  }
  std::string arithmetic() const override { return fmt::format("cuda sm_{}{}", properties_.major, properties_.minor); }
  Device place() const override { return memory_->device(); }
  std::shared_ptr<MemoryResource> memory() override { return memory_; }
  const cuda::CudaKernels& kernels() const override { return cuda::device_kernels(); }
  std::int64_t scratch_bytes() const override { return std::int64_t{256} << 20; }
  void* stream() const override {
    memory_->use();
    return memory_->stream();
  }

  void copy_in(void* to, const void* from_host, std::size_t bytes) override {
    memory_->use();
    const std::lock_guard lock(staging_);
    ring_.pass(
        from_host, bytes,
        [&](std::size_t slot) { check(cudaEventSynchronize(pinned_.ended(slot)), "cudaEventSynchronize", "a slot of staging"); },
        [&](std::size_t slot, const char* memory, std::size_t offset, std::size_t part) {
          check(cudaMemcpyAsync(static_cast<char*>(to) + offset, memory, part, cudaMemcpyHostToDevice, memory_->stream()), "cudaMemcpyAsync",
                fmt::format("an upload of {} bytes", bytes));
          check(cudaEventRecord(pinned_.ended(slot), memory_->stream()), "cudaEventRecord", "a slot of staging");
        });
  }
  void copy_out(void* to_host, const void* from, std::size_t bytes) override {
    if (bytes == 0) return;
    memory_->use();
    const std::string purpose = fmt::format("a download of {} bytes", bytes);
    check(cudaMemcpyAsync(to_host, from, bytes, cudaMemcpyDeviceToHost, memory_->stream()), "cudaMemcpyAsync", purpose);
    check(cudaStreamSynchronize(memory_->stream()), "cudaStreamSynchronize", purpose);
  }
  void zero(void* at, std::size_t bytes) override {
    memory_->use();
    check(cudaMemsetAsync(at, 0, bytes, memory_->stream()), "cudaMemsetAsync", fmt::format("{} bytes of zeros", bytes));
  }
  void synchronize() override {
    memory_->use();
    check(cudaStreamSynchronize(memory_->stream()), "cudaStreamSynchronize", "the work before it");
  }
  void fail_launch(const char* operation, int code, const std::string& sizes) override {
    fail(ErrorKind::kDevice, "the launch of {} of {} failed: {}", operation, sizes, words_of(static_cast<cudaError_t>(code)));
  }

 private:
  const cudaDeviceProp properties_;
  const std::shared_ptr<PoolMemory> memory_;
  std::mutex staging_;
  PinnedMemory pinned_;
  StagingRing ring_;
};

}  // namespace

std::shared_ptr<Backend> make_cuda_backend(int index, int threads) {
  return make_backend_on(std::make_unique<RuntimeDevice>(index), threads);
}

}  // namespace llmq

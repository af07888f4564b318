// A device of the CUDA runtime: kernels and copies in one queue, copies into new memory beside them, pinned
// memory for what goes up and for much that comes down.
//
// Several threads carry what passes through pinned memory: one moves some 10 GB/s, the bus 50. On an H100
// (26 November 2026) copies down that the driver staged itself ran at 5.4 GB/s. A copy down waits for the
// queue. Every failure names the call, what it was for and its size.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "base/threads.h"
#include "device/automatic_device.h"
#include "device/cuda/cuda_backend.h"
#include "device/cuda/cusolver.h"
#include "device/cuda/dense/cublaslt.h"
#include "device/cuda/profile_ranges.h"
#include "device/cuda/runtime_memory.h"
#include "device/cuda/staging_ring.h"

namespace llmq {
namespace {

// What the kernels are built for (cmake/LlmqCuda.cmake): 75 is compute capability 7.5.
constexpr int kOldestMajor = LLMQ_CUDA_OLDEST / 10, kOldestMinor = LLMQ_CUDA_OLDEST % 10;

constexpr int kMostCarriers = 8;
constexpr std::size_t kCarried = std::size_t{512} << 10,  // bytes that a thread takes at once
    kStagedDown = std::size_t{1} << 20;                   // bytes from which on a copy down is staged

[[noreturn]] void refuse_cuda(const std::string& message) {
  fail(ErrorKind::kUnsupported, {message, {}, "--device", "use --device cpu"});
}

// The properties of device `index`, or half a sentence on why there is none.
std::string find_device(int index, cudaDeviceProp& properties) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  const int version = CUDART_VERSION;
  if (error == cudaErrorInsufficientDriver)
    return fmt::format("this machine has no NVIDIA driver for CUDA {}.{}", version / 1000,
                       version % 1000 / 10);
  if (error != cudaSuccess && error != cudaErrorNoDevice)
    return fmt::format("the driver answers: {}", words_of(error));
  if (count == 0) return "this machine has no CUDA device";
  if (index >= count)
    return fmt::format("this machine has {}",
                       count == 1 ? "cuda:0 alone" : fmt::format("cuda:0 to cuda:{}", count - 1));
  check_cuda(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties",
             fmt::format("cuda:{}", index));
  if (properties.major < kOldestMajor ||
      (properties.major == kOldestMajor && properties.minor < kOldestMinor))
    return fmt::format(
        "it is a {} of compute capability {}.{}; {}.{} is the least that this llmq is built for",
        properties.name, properties.major, properties.minor, kOldestMajor, kOldestMinor);
  return {};
}

cudaDeviceProp device_at(int index) {
  cudaDeviceProp properties{};
  const std::string missing = find_device(index, properties);
  if (!missing.empty()) refuse_cuda(fmt::format("device cuda:{} is asked for, and {}", index, missing));
  return properties;
}

class RuntimeDevice final : public CudaDevice {
 public:
  RuntimeDevice(int index, int threads)
      : properties_(device_at(index)),
        memory_(std::make_shared<PoolMemory>(index)),
        carriers_(std::min(threads, kMostCarriers)),
        ring_(pinned_.slots(), PinnedMemory::kSlotBytes,
              [this](void* to, const void* from, std::size_t bytes) { carry(to, from, bytes); }) {
    memory_->use();
    float4_linear_ = cuda::float4_of_device();
  }
  ~RuntimeDevice() override {  // before the pinned memory goes
    cudaStreamSynchronize(memory_->copies());
    cudaStreamSynchronize(memory_->stream());
  }
  RuntimeDevice(const RuntimeDevice&) = delete;
  RuntimeDevice& operator=(const RuntimeDevice&) = delete;

  std::string name() const override {
    return fmt::format("cuda:{} ({}, sm_{}{})", memory_->device().index, properties_.name, properties_.major,
                       properties_.minor);
  }
  std::string arithmetic() const override {
    const CusolverFound& library = find_cusolver();
    return fmt::format("cuda sm_{}{}{}", properties_.major, properties_.minor,
                       library.version.empty() ? "" : ", cuSOLVER " + library.version);
  }
  Device place() const override { return memory_->device(); }
  std::shared_ptr<MemoryResource> memory() override { return memory_; }
  std::uint64_t peak_bytes() const override { return memory_->peak_bytes(); }
  std::uint64_t free_bytes() const override { return memory_->free_bytes(); }
  const cuda::CudaKernels& kernels() const override { return cuda::device_kernels(); }
  cuda::Float4Launch float4_linear() const override { return float4_linear_; }
  std::int64_t scratch_bytes() const override { return std::int64_t{256} << 20; }
  void* stream() const override {
    memory_->use();
    return memory_->stream();
  }

  SquareCholesky* cholesky() override {
    if (!cholesky_ && why_no_cholesky().empty()) {
      memory_->trim();  // for what the library allocates by itself
      cholesky_ = make_cusolver(memory_, stream());
    }
    return cholesky_.get();
  }
  std::string why_no_cholesky() const override { return find_cusolver().missing; }
  DenseLibrary* dense_library() override {
    if (!dense_ && why_no_dense_library().empty()) {
      memory_->trim();  // for what the library allocates by itself
      dense_ = make_cublaslt(memory_, stream());
    }
    return dense_.get();
  }
  // LLMQ_DENSE_PRODUCTS=own: not even where the library is there.
  std::string why_no_dense_library() const override {
    const char* const word = std::getenv("LLMQ_DENSE_PRODUCTS");
    if (word == nullptr || *word == '\0') return find_cublaslt().missing;
    if (std::strcmp(word, "own") == 0) return "LLMQ_DENSE_PRODUCTS=own asks for none";
    fail(ErrorKind::kUsage, {fmt::format("'{}' is no choice of dense products", word),
                             {},
                             "LLMQ_DENSE_PRODUCTS",
                             "write own, or leave it out"});
  }

  void copy_in(void* to, const void* from_host, std::size_t bytes) override {
    pass(to, from_host, bytes, memory_->stream());
  }
  void copy_out(void* to_host, const void* from, std::size_t bytes) override {
    if (bytes == 0) return;
    memory_->use();
    if (bytes >= kStagedDown) return fetch(to_host, from, bytes);
    const std::string purpose = fmt::format("a download of {} bytes", bytes);
    check_cuda(cudaMemcpyAsync(to_host, from, bytes, cudaMemcpyDeviceToHost, memory_->stream()),
               "cudaMemcpyAsync", purpose);
    check_cuda(cudaStreamSynchronize(memory_->stream()), "cudaStreamSynchronize", purpose);
  }
  void zero(void* at, std::size_t bytes) override {
    memory_->use();
    check_cuda(cudaMemsetAsync(at, 0, bytes, memory_->stream()), "cudaMemsetAsync",
               fmt::format("{} bytes of zeros", bytes));
  }
  // Whatever happens, the queue of work waits for the copies before the memory can be used or freed in it.
  Buffer filled(std::size_t bytes, const std::function<void(const Put&)>& fill) override {
    memory_->use();
    Event copied;
    Buffer buffer(copied_, std::max<std::size_t>(bytes, 1));
    try {
      fill([&](std::size_t offset, const void* from_host, std::size_t part) {
        pass(buffer.as<char>() + offset, from_host, part, memory_->copies());
      });
      copied.order(memory_->copies(), memory_->stream(), "new memory");
    } catch (...) {
      cudaStreamSynchronize(memory_->copies());
      throw;
    }
    return buffer;
  }
  // Runs in this device's queue, behind what wrote `from`; and what comes after in the owner's queue may
  // change or free it.
  bool copy_across(CudaDevice& owner, const Strided& copy) override {
    auto* const other = dynamic_cast<RuntimeDevice*>(&owner);
    if (other == nullptr) return false;
    const bool same = other->memory_->device() == memory_->device(), own = other == this;
    if (!same && !memory_->reaches(*other->memory_)) return false;
    if (!own)
      other->handed_over_.order(other->memory_->stream(), memory_->stream(), "a copy between devices");
    memory_->use();
    const std::string purpose = fmt::format("{} rows of {} bytes between devices", copy.rows, copy.bytes);
    if (copy.rows == 1 || (copy.to_stride == copy.bytes && copy.from_stride == copy.bytes))
      check_cuda(
          cudaMemcpyAsync(copy.to, copy.from, copy.rows * copy.bytes, cudaMemcpyDefault, memory_->stream()),
          "cudaMemcpyAsync", purpose);
    else
      check_cuda(cudaMemcpy2DAsync(copy.to, copy.to_stride, copy.from, copy.from_stride, copy.bytes,
                                   copy.rows, cudaMemcpyDefault, memory_->stream()),
                 "cudaMemcpy2DAsync", purpose);
    if (!own) handed_over_.order(memory_->stream(), other->memory_->stream(), "a copy between devices");
    return true;
  }
  void begin_range(const std::string& name) override { begin_profile_range(name); }
  void end_range() noexcept override { end_profile_range(); }
  void synchronize() override {
    memory_->use();
    check_cuda(cudaStreamSynchronize(memory_->stream()), "cudaStreamSynchronize", "the work before it");
  }
  void fail_launch(const char* operation, int code, const std::string& sizes) override {
    fail(ErrorKind::kDevice, "the launch of {} of {} failed: {}", operation, sizes,
         words_of(static_cast<cudaError_t>(code)));
  }

 private:
  void carry(void* to, const void* from, std::size_t bytes) {
    if (bytes <= kCarried) {
      std::memcpy(to, from, bytes);
      return;
    }
    carriers_.parallel_for((bytes + kCarried - 1) / kCarried, [&](std::size_t part, int) {
      const std::size_t first = part * kCarried;
      std::memcpy(static_cast<char*>(to) + first, static_cast<const char*>(from) + first,
                  std::min(kCarried, bytes - first));
    });
  }

  void wait_for(std::size_t slot) {
    check_cuda(cudaEventSynchronize(pinned_.ended(slot)), "cudaEventSynchronize", "a slot of staging");
  }
  void copy_by(std::size_t slot, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
               cudaStream_t stream) {
    check_cuda(cudaMemcpyAsync(to, from, bytes, kind, stream), "cudaMemcpyAsync",
               fmt::format("{} bytes by a slot of staging", bytes));
    check_cuda(cudaEventRecord(pinned_.ended(slot), stream), "cudaEventRecord", "a slot of staging");
  }

  void pass(void* to, const void* from_host, std::size_t bytes, cudaStream_t stream) {
    memory_->use();
    const std::lock_guard lock(staging_);
    ring_.pass(
        from_host, bytes, [&](std::size_t slot) { wait_for(slot); },
        [&](std::size_t slot, const char* memory, std::size_t offset, std::size_t part) {
          copy_by(slot, static_cast<char*>(to) + offset, memory, part, cudaMemcpyHostToDevice, stream);
        });
  }

  void fetch(void* to_host, const void* from, std::size_t bytes) {
    const std::lock_guard lock(staging_);
    ring_.fetch(
        to_host, bytes, [&](std::size_t slot) { wait_for(slot); },
        [&](std::size_t slot, char* memory, std::size_t offset, std::size_t part) {
          copy_by(slot, memory, static_cast<const char*>(from) + offset, part, cudaMemcpyDeviceToHost,
                  memory_->stream());
        });
  }

  const cudaDeviceProp properties_;
  const std::shared_ptr<PoolMemory> memory_;
  Event handed_over_;  // a wait for it is for what it recorded last
  const std::shared_ptr<CopiedMemory> copied_ = std::make_shared<CopiedMemory>(memory_);
  std::mutex staging_;  // of the ring and of those who carry for it
  ThreadPool carriers_;
  PinnedMemory pinned_;
  StagingRing ring_;
  cuda::Float4Launch float4_linear_ = nullptr;
  std::unique_ptr<SquareCholesky> cholesky_;
  std::unique_ptr<DenseLibrary> dense_;
};

}  // namespace

GpuSight look_for_gpu() {
  cudaDeviceProp properties{};
  const std::string missing = find_device(0, properties);
  if (!missing.empty()) return {{}, missing};
  return {SeenGpu{properties.name, properties.major, properties.minor}, {}};
}

std::shared_ptr<Backend> make_cuda_backend(int index, int threads, DeviceUse use) {
  return make_backend_on(std::make_unique<RuntimeDevice>(index, threads), threads, use);
}

}  // namespace llmq

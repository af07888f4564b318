// A CUDA device whose memory is the host's and whose blocks of threads run in turn (kernels/cuda/block.h). What it does not show: warps
// out of step, the order in which a tensor core adds, and speed.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/error.h"
#include "device/cuda/cuda_backend.h"

namespace llmq {
namespace {

// Of the host, under the device's name: a view of the host is refused as on a device.
class EmulatedMemory final : public MemoryResource {
 public:
  explicit EmulatedMemory(int index) : device_{DeviceKind::kCuda, index} {}
  void* allocate(std::size_t bytes) override {
    void* const pointer = host_memory()->allocate(bytes);
    const std::uint64_t held = held_ += bytes;
    for (std::uint64_t peak = peak_; peak < held && !peak_.compare_exchange_weak(peak, held);) {}
    return pointer;
  }
  void deallocate(void* pointer, std::size_t bytes) noexcept override {
    held_ -= bytes;
    host_memory()->deallocate(pointer, bytes);
  }
  Device device() const override { return device_; }
  std::uint64_t peak_bytes() const { return peak_; }

 private:
  Device device_;
  std::atomic<std::uint64_t> held_ = 0, peak_ = 0;
};

class EmulatedDevice final : public CudaDevice {
 public:
  explicit EmulatedDevice(int index) : memory_(std::make_shared<EmulatedMemory>(index)) {}
  std::string name() const override { return "cuda (emulated)"; }
  std::string arithmetic() const override { return "cuda emulated"; }
  Device place() const override { return memory_->device(); }
  std::shared_ptr<MemoryResource> memory() override { return memory_; }
  std::uint64_t peak_bytes() const override { return memory_->peak_bytes(); }
  const cuda::CudaKernels& kernels() const override { return cuda::emulated_kernels(); }
  std::int64_t scratch_bytes() const override { return std::int64_t{64} << 10; }  // so that tests see operations cut
  void* stream() const override { return nullptr; }
  void copy_in(void* to, const void* from_host, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from_host, bytes);
  }
  void copy_out(void* to_host, const void* from, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to_host, from, bytes);
  }
  void zero(void* at, std::size_t bytes) override {
    if (bytes > 0) std::memset(at, 0, bytes);
  }
  void synchronize() override {}
  Buffer filled(std::size_t bytes, const std::function<void(const Put&)>& fill) override {
    Buffer buffer(memory_, std::max<std::size_t>(bytes, 1));
    fill([&](std::size_t offset, const void* from_host, std::size_t part) { copy_in(buffer.as<char>() + offset, from_host, part); });
    return buffer;
  }
  bool copy_across(CudaDevice& owner, const Strided& copy) override {
    if (dynamic_cast<EmulatedDevice*>(&owner) == nullptr) return false;
    for (std::size_t row = 0; row < copy.rows; ++row)
      std::memcpy(static_cast<char*>(copy.to) + row * copy.to_stride, static_cast<const char*>(copy.from) + row * copy.from_stride, copy.bytes);
    return true;
  }
  void begin_range(const std::string&) override {}
  void end_range() noexcept override {}
  void fail_launch(const char* operation, int code, const std::string& sizes) override {
    fail(ErrorKind::kDevice, "{} of {} failed in the emulation: {}", operation, sizes, code);
  }

 private:
  std::shared_ptr<EmulatedMemory> memory_;
};

}  // namespace

std::unique_ptr<CudaDevice> make_emulated_device(int index) { return std::make_unique<EmulatedDevice>(index); }

std::shared_ptr<Backend> make_emulated_cuda_backend(int threads, int index) { return make_backend_on(make_emulated_device(index), threads); }

}  // namespace llmq

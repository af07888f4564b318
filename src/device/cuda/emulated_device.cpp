// A CUDA device whose memory is the host's and whose blocks of threads run in turn (kernels/cuda/block.h).
// What it does not show: warps out of step, the order in which a tensor core adds, and speed.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "device/cholesky.h"
#include "device/cuda/cuda_backend.h"

namespace llmq {
namespace {

// Of the host, under the device's name: a view of the host is refused as on a device.
class EmulatedMemory final : public MemoryResource {
 public:
  explicit EmulatedMemory(const EmulatedDeviceSpec& spec)
      : device_{DeviceKind::kCuda, spec.index}, limit_(spec.memory_bytes.value_or(UINT64_MAX)) {}
  void* allocate(std::size_t bytes) override {
    const std::uint64_t held = held_ += bytes;
    if (held > limit_) {
      held_ -= bytes;
      fail(ErrorKind::kResource, "the emulated device has no room for {} more bytes: {} of {} are taken",
           bytes, held - bytes, limit_);
    }
    for (std::uint64_t peak = peak_; peak < held && !peak_.compare_exchange_weak(peak, held);) {
    }
    return host_memory()->allocate(bytes);
  }
  void deallocate(void* pointer, std::size_t bytes) noexcept override {
    held_ -= bytes;
    host_memory()->deallocate(pointer, bytes);
  }
  Device device() const override { return device_; }
  std::uint64_t peak_bytes() const { return peak_; }
  std::uint64_t free_bytes() const { return limit_ - held_; }

 private:
  Device device_;
  std::uint64_t limit_;
  std::atomic<std::uint64_t> held_ = 0, peak_ = 0;
};

// The host's own, behind a library's interface.
class EmulatedCholesky final : public SquareCholesky {
 public:
  int factor(double* square, std::int64_t size) override {
    LowerTriangle triangle = triangle_of(square, size);
    for (std::int64_t i = 0; i < size; ++i)
      if (!std::all_of(triangle.row(i), triangle.row(i) + i + 1, [](double v) { return std::isfinite(v); }))
        fail(ErrorKind::kInternal, "a number of row {} of the square is not finite", i);
    if (!cholesky_lower(triangle, pool_)) return 1;
    for (std::int64_t i = 0; i < size; ++i) std::copy_n(triangle.row(i), i + 1, square + i * size);
    return 0;
  }
  int solve(const double* square, std::int64_t size, double* rows, std::int64_t stride,
            std::int64_t count) override {
    LowerTriangle factor = triangle_of(square, size);
    factor.pad();
    if (stride != factor.padded()) return -4;
    solve_rows(factor, {rows, static_cast<std::size_t>(count * stride)}, pool_);
    return 0;
  }

 private:
  static LowerTriangle triangle_of(const double* square, std::int64_t size) {
    LowerTriangle triangle(size);
    for (std::int64_t i = 0; i < size; ++i) std::copy_n(square + i * size, i + 1, triangle.row(i));
    return triangle;
  }

  ThreadPool pool_{1};
};

class EmulatedDevice final : public CudaDevice {
 public:
  explicit EmulatedDevice(const EmulatedDeviceSpec& spec)
      : memory_(std::make_shared<EmulatedMemory>(spec)),
        why_no_cholesky_(spec.why_no_cholesky),
        float4_linear_(spec.float4_linear),
        scratch_bytes_(spec.scratch_bytes) {}
  std::string name() const override { return "cuda (emulated)"; }
  std::string arithmetic() const override { return "cuda emulated"; }
  Device place() const override { return memory_->device(); }
  std::shared_ptr<MemoryResource> memory() override { return memory_; }
  std::uint64_t peak_bytes() const override { return memory_->peak_bytes(); }
  std::uint64_t free_bytes() const override { return memory_->free_bytes(); }
  const cuda::CudaKernels& kernels() const override { return cuda::emulated_kernels(); }
  cuda::Float4Launch float4_linear() const override { return float4_linear_; }
  std::int64_t scratch_bytes() const override { return scratch_bytes_; }
  void* stream() const override { return nullptr; }
  SquareCholesky* cholesky() override { return &cholesky_; }
  std::string why_no_cholesky() const override { return why_no_cholesky_; }
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
    fill([&](std::size_t offset, const void* from_host, std::size_t part) {
      copy_in(buffer.as<char>() + offset, from_host, part);
    });
    return buffer;
  }
  bool copy_across(CudaDevice& owner, const Strided& copy) override {
    if (dynamic_cast<EmulatedDevice*>(&owner) == nullptr) return false;
    for (std::size_t row = 0; row < copy.rows; ++row)
      std::memcpy(static_cast<char*>(copy.to) + row * copy.to_stride,
                  static_cast<const char*>(copy.from) + row * copy.from_stride, copy.bytes);
    return true;
  }
  void begin_range(const std::string&) override {}
  void end_range() noexcept override {}
  void fail_launch(const char* operation, int code, const std::string& sizes) override {
    fail(ErrorKind::kDevice, "{} of {} failed in the emulation: {}", operation, sizes, code);
  }

 private:
  std::shared_ptr<EmulatedMemory> memory_;
  EmulatedCholesky cholesky_;
  std::string why_no_cholesky_;
  cuda::Float4Launch float4_linear_;
  std::int64_t scratch_bytes_;
};

}  // namespace

std::unique_ptr<CudaDevice> make_emulated_device(const EmulatedDeviceSpec& spec) {
  return std::make_unique<EmulatedDevice>(spec);
}

}  // namespace llmq

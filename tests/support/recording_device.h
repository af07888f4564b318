// An emulated CUDA device that notes what the backend asked of it.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/cuda_backend.h"

namespace llmq::testing {

struct DeviceNotes {
  std::size_t lists = 0;            // copied in where work stands in order
  std::size_t up = 0;               // bytes of them
  std::size_t filled = 0;           // new memory that was filled beside the work
  std::size_t down = 0;             // bytes copied to the host
  std::size_t across = 0;           // copies from other devices
  std::vector<std::string> ranges;  // as they began, a space before the name for each that was open
  int open = 0;
};

class RecordingDevice : public CudaDevice {
 public:
  // Where `reaches` is false, no other device's memory can be copied from here.
  RecordingDevice(DeviceNotes& notes, int index, bool reaches = true)
      : inner_(make_emulated_device({index})), notes_(notes), reaches_(reaches) {}
  std::string name() const override { return inner_->name(); }
  std::string arithmetic() const override { return inner_->arithmetic(); }
  Device place() const override { return inner_->place(); }
  std::shared_ptr<MemoryResource> memory() override { return inner_->memory(); }
  std::uint64_t peak_bytes() const override { return inner_->peak_bytes(); }
  std::uint64_t free_bytes() const override { return inner_->free_bytes(); }
  const cuda::CudaKernels& kernels() const override { return inner_->kernels(); }
  std::int64_t scratch_bytes() const override { return inner_->scratch_bytes(); }
  void* stream() const override { return inner_->stream(); }
  SquareCholesky* cholesky() override { return inner_->cholesky(); }
  void copy_in(void* to, const void* from_host, std::size_t bytes) override {
    ++notes_.lists;
    notes_.up += bytes;
    inner_->copy_in(to, from_host, bytes);
  }
  void copy_out(void* to_host, const void* from, std::size_t bytes) override {
    notes_.down += bytes;
    inner_->copy_out(to_host, from, bytes);
  }
  void zero(void* at, std::size_t bytes) override { inner_->zero(at, bytes); }
  void synchronize() override { inner_->synchronize(); }
  Buffer filled(std::size_t bytes, const std::function<void(const Put&)>& fill) override {
    ++notes_.filled;
    return inner_->filled(bytes, fill);
  }
  bool copy_across(CudaDevice& owner, const Strided& copy) override {
    auto* const other = dynamic_cast<RecordingDevice*>(&owner);
    if (other == nullptr || !reaches_) return false;
    ++notes_.across;
    return inner_->copy_across(*other->inner_, copy);
  }
  void begin_range(const std::string& name) override {
    notes_.ranges.push_back(std::string(static_cast<std::size_t>(notes_.open++), ' ') + name);
  }
  void end_range() noexcept override { --notes_.open; }
  void fail_launch(const char* operation, int code, const std::string& sizes) override {
    inner_->fail_launch(operation, code, sizes);
  }

 private:
  std::unique_ptr<CudaDevice> inner_;
  DeviceNotes& notes_;
  bool reaches_;
};

inline std::shared_ptr<Backend> recording_backend(DeviceNotes& notes, int index = 0, bool reaches = true) {
  return make_backend_on(std::make_unique<RecordingDevice>(notes, index, reaches), 1);
}

}  // namespace llmq::testing

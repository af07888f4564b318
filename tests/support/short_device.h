// An emulated CUDA device that has no room where a test says so.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "support/recording_device.h"

namespace llmq::testing {

// Whether an allocation of so many bytes is refused; `ranges`: the open ones, each between slashes ("/block
// 0/x_o forward/").
using Refuse = std::function<bool(std::size_t bytes, const std::string& ranges)>;

// Memory of which some is refused.
struct ShortMemory final : MemoryResource {
  std::shared_ptr<MemoryResource> inner;
  Refuse refuse;
  std::string ranges = "/";
  ShortMemory(std::shared_ptr<MemoryResource> from, Refuse rule)
      : inner(std::move(from)), refuse(std::move(rule)) {}
  void* allocate(std::size_t bytes) override {
    if (refuse(bytes, ranges))
      fail(ErrorKind::kResource, "the short device has no room for {} more bytes", bytes);
    return inner->allocate(bytes);
  }
  void deallocate(void* pointer, std::size_t bytes) noexcept override { inner->deallocate(pointer, bytes); }
  Device device() const override { return inner->device(); }
};

class ShortDevice final : public RecordingDevice {
 public:
  ShortDevice(int index, Refuse refuse)
      : RecordingDevice(notes_, index),
        memory_(std::make_shared<ShortMemory>(RecordingDevice::memory(), std::move(refuse))) {}
  std::shared_ptr<MemoryResource> memory() override { return memory_; }
  void begin_range(const std::string& name) override {
    lengths_.push_back(memory_->ranges.size());
    memory_->ranges += name + "/";
  }
  void end_range() noexcept override {
    memory_->ranges.resize(lengths_.back());
    lengths_.pop_back();
  }

 private:
  DeviceNotes notes_;
  std::vector<std::size_t> lengths_;
  std::shared_ptr<ShortMemory> memory_;
};

inline std::shared_ptr<Backend> short_backend(int index, Refuse refuse) {
  return make_backend_on(std::make_unique<ShortDevice>(index, std::move(refuse)), 1);
}

}  // namespace llmq::testing

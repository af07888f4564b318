// Bytes owned on one device, from one resource; move-only. Freed where they came from.
#pragma once
#include <cstddef>
#include <memory>
#include <utility>

#include "tensor/tensor_view.h"

namespace llmq {

// Where buffers come from. Implementations: host (64-byte aligned), the fake device, CUDA pools; tests count
// or refuse.
class MemoryResource {
 public:
  virtual ~MemoryResource() = default;
  virtual void* allocate(
      std::size_t bytes) = 0;  // aligned to 64; Error(kResource) with the figure when there is no room
  virtual void deallocate(void* pointer, std::size_t bytes) noexcept = 0;
  virtual Device device() const = 0;
};

std::shared_ptr<MemoryResource> host_memory();
// Gives the system what the host's heap holds of freed blocks: worth it before something large of another
// kind.
void return_freed_memory();

class Buffer {
 public:
  Buffer() = default;
  Buffer(std::shared_ptr<MemoryResource> resource, std::size_t bytes);
  ~Buffer() { reset(); }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    reset();
    swap(other);
    return *this;
  }

  void* get() const { return pointer_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return resource_ ? resource_->device() : Device{}; }
  TensorView view(DType dtype, Shape shape) const;  // Error(kInternal) when it does not fit
  template <typename T>
  T* as() const {
    return static_cast<T*>(pointer_);
  }
  void reset() noexcept;

 private:
  void swap(Buffer& other) noexcept {
    std::swap(resource_, other.resource_);
    std::swap(pointer_, other.pointer_);
    std::swap(bytes_, other.bytes_);
  }
  std::shared_ptr<MemoryResource> resource_;
  void* pointer_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace llmq

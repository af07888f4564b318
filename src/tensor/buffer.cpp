#include "tensor/buffer.h"

#include <new>

#include "base/error.h"

namespace llmq {
namespace {

constexpr std::align_val_t kAlignment{64};  // a cache line and an AVX-512 register

class HostMemory final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes) override {
    void* pointer = ::operator new(bytes == 0 ? 1 : bytes, kAlignment, std::nothrow);
    if (pointer == nullptr) fail(ErrorKind::kResource, "no memory for {} more bytes", bytes);
    return pointer;
  }
  void deallocate(void* pointer, std::size_t) noexcept override { ::operator delete(pointer, kAlignment); }
  Device device() const override { return {}; }
};

}  // namespace

std::shared_ptr<MemoryResource> host_memory() {
  static const std::shared_ptr<MemoryResource> memory = std::make_shared<HostMemory>();
  return memory;
}

Buffer::Buffer(std::shared_ptr<MemoryResource> resource, std::size_t bytes)
    : resource_(std::move(resource)), pointer_(resource_->allocate(bytes)), bytes_(bytes) {}

TensorView Buffer::view(DType dtype, Shape shape) const {
  const TensorView view(pointer_, dtype, shape, device());
  if (view.bytes() > bytes_)
    fail(ErrorKind::kInternal, "a {} tensor {} does not fit in a buffer of {} bytes", dtype_row(dtype).name,
         shape.text(), bytes_);
  return view;
}

void Buffer::reset() noexcept {
  if (resource_ && pointer_ != nullptr) resource_->deallocate(pointer_, bytes_);
  resource_.reset();
  pointer_ = nullptr;
  bytes_ = 0;
}

}  // namespace llmq

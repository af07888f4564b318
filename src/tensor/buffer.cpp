#include "tensor/buffer.h"

#include <malloc.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "base/error.h"

namespace llmq {
namespace {

constexpr std::size_t kAlignment = 64;  // a cache line and an AVX-512 register

// Aligned by hand inside a plain block, whose start is kept just below the aligned address: glibc 2.36 does
// not reuse freed blocks of aligned_alloc for the next one of the same size, and a run that allocates per
// chunk grew by the sum of its buffers.
class HostMemory final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes) override {
    const std::size_t padded = bytes + kAlignment + sizeof(void*);
    void* const block = padded < bytes ? nullptr : std::malloc(padded);
    if (block == nullptr) fail(ErrorKind::kResource, "no memory for {} more bytes", bytes);
    std::byte* const first = static_cast<std::byte*>(block) + sizeof(void*);
    const std::size_t beyond = reinterpret_cast<std::uintptr_t>(first) % kAlignment;
    void* const aligned = first + (kAlignment - beyond) % kAlignment;
    static_cast<void**>(aligned)[-1] = block;
    return aligned;
  }
  void deallocate(void* pointer, std::size_t) noexcept override {
    std::free(static_cast<void**>(pointer)[-1]);
  }
  Device device() const override { return {}; }
};

}  // namespace

std::shared_ptr<MemoryResource> host_memory() {
  static const std::shared_ptr<MemoryResource> memory = std::make_shared<HostMemory>();
  return memory;
}

void return_freed_memory() { malloc_trim(0); }

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

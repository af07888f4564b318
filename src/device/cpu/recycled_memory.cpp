#include "device/cpu/recycled_memory.h"

#include <bit>
#include <mutex>
#include <vector>

namespace llmq {
namespace {

constexpr std::size_t kSmallest = std::size_t{1} << 16;  // smaller blocks are cheap as they come
constexpr std::size_t kLargest = std::size_t{1} << 25;   // larger ones (weights) are not asked for again

// `bytes` rounded up to one of four steps per power of two: at most a quarter more.
std::size_t size_class(std::size_t bytes) {
  const std::size_t step = std::bit_floor(bytes - 1) / 4;
  return (bytes + step - 1) / step * step;
}

bool kept(std::size_t bytes) { return bytes >= kSmallest && bytes <= kLargest; }

class RecycledMemory final : public MemoryResource {
 public:
  explicit RecycledMemory(std::size_t kept_bytes) : room_(kept_bytes) {}
  ~RecycledMemory() override {
    for (const Block& block : free_) source_->deallocate(block.pointer, block.bytes);
  }
  RecycledMemory(const RecycledMemory&) = delete;
  RecycledMemory& operator=(const RecycledMemory&) = delete;

  void* allocate(std::size_t bytes) override {
    if (!kept(bytes)) return source_->allocate(bytes);
    const std::size_t size = size_class(bytes);
    {
      const std::lock_guard lock(mutex_);
      for (std::size_t i = free_.size(); i-- > 0;) {  // the last freed is the likeliest to be in a cache
        if (free_[i].bytes != size) continue;
        void* const pointer = free_[i].pointer;
        free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
        room_ += size;
        return pointer;
      }
    }
    return source_->allocate(size);
  }

  void deallocate(void* pointer, std::size_t bytes) noexcept override {
    if (kept(bytes)) {
      const std::size_t size = size_class(bytes);
      const std::lock_guard lock(mutex_);
      if (size <= room_ && free_.size() < free_.capacity()) {
        free_.push_back({pointer, size});
        room_ -= size;
        return;
      }
    }
    source_->deallocate(pointer, bytes);
  }

  Device device() const override { return {}; }

 private:
  struct Block {
    void* pointer;
    std::size_t bytes;
  };
  static std::vector<Block> reserved() {
    std::vector<Block> blocks;
    blocks.reserve(64);  // so that freeing never allocates
    return blocks;
  }

  const std::shared_ptr<MemoryResource> source_ = host_memory();
  std::mutex mutex_;
  std::size_t room_;
  std::vector<Block> free_ = reserved();
};

}  // namespace

std::shared_ptr<MemoryResource> recycled_memory(std::size_t kept_bytes) {
  return std::make_shared<RecycledMemory>(kept_bytes);
}

}  // namespace llmq

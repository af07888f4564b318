#include "device/cpu/recycled_memory.h"

#include <algorithm>
#include <array>
#include <bit>
#include <mutex>
#include <vector>

#include "device/backend_scratch.h"

namespace llmq {
namespace {

constexpr std::size_t kSmallest = std::size_t{1}
                                  << 16;  // smaller blocks are kept by powers of two, a few of each
constexpr std::size_t kLeast = 64, kFew = 16, kSmallClasses = 11;
constexpr std::size_t kLargest = std::size_t{1} << 25;  // larger ones (weights) are not asked for again

// `bytes` rounded up to one of four steps per power of two: at most a quarter more.
std::size_t size_class(std::size_t bytes) {
  const std::size_t step = std::max<std::size_t>(std::bit_floor(bytes - 1) / 4, 1);
  return (bytes + step - 1) / step * step;
}

// 64, 128, ... 65536 bytes: the class of a small block.
std::size_t small_class(std::size_t bytes) {
  return static_cast<std::size_t>(std::bit_width((std::max(bytes, std::size_t{1}) - 1) / kLeast));
}

bool kept(std::size_t bytes) { return bytes >= kSmallest && bytes <= kLargest; }

class RecycledMemory final : public MemoryResource {
 public:
  explicit RecycledMemory(std::size_t kept_bytes) : room_(kept_bytes) {}
  ~RecycledMemory() override {
    for (const Block& block : free_) source_->deallocate(block.pointer, block.bytes);
    for (std::size_t c = 0; c < small_.size(); ++c)
      for (std::size_t i = 0; i < small_[c].count; ++i) source_->deallocate(small_[c].blocks[i], kLeast << c);
  }
  RecycledMemory(const RecycledMemory&) = delete;
  RecycledMemory& operator=(const RecycledMemory&) = delete;

  void* allocate(std::size_t bytes) override {
    if (bytes < kSmallest) return allocate_small(small_class(bytes));
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
    if (bytes < kSmallest) {
      Few& few = small_[small_class(bytes)];
      const std::lock_guard lock(mutex_);
      if (few.count < kFew) {
        few.blocks[few.count++] = pointer;
        return;
      }
    } else if (kept(bytes)) {
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
  struct Few {
    std::array<void*, kFew> blocks;
    std::size_t count = 0;
  };
  void* allocate_small(std::size_t c) {
    {
      const std::lock_guard lock(mutex_);
      if (small_[c].count > 0) return small_[c].blocks[--small_[c].count];
    }
    return source_->allocate(kLeast << c);
  }
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
  std::array<Few, kSmallClasses> small_;
};

}  // namespace

bool is_recycled(std::uint64_t bytes) { return bytes <= kLargest; }

std::shared_ptr<MemoryResource> recycled_memory(std::size_t kept_bytes) {
  return std::make_shared<RecycledMemory>(kept_bytes);
}

}  // namespace llmq

// Blocks are handed out one after another from mappings of kMapping bytes (or of one larger block's); what a
// mapping has left when the next block does not fit is never touched, so it costs addresses and no memory.
#include "device/cpu/weight_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <map>
#include <mutex>

#include "base/checked.h"
#include "base/error.h"

namespace llmq {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20, kMapping = std::size_t{64} << 20, kAlignment = 64;

class WeightMemory final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes) override {
    if (bytes > SIZE_MAX / 2) fail(ErrorKind::kResource, "no memory for {} more bytes", bytes);
    const std::size_t size = round_up(bytes == 0 ? 1 : bytes, kAlignment);
    const std::lock_guard lock(mutex_);
    if (left_ < size) open(size > kMapping ? size : kMapping);
    char* const block = next_;
    next_ += size;
    left_ -= size;
    ++mappings_.at(open_).blocks;
    return block;
  }

  void deallocate(void* pointer, std::size_t) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto mapping = --mappings_.upper_bound(static_cast<char*>(pointer));
    if (--mapping->second.blocks > 0) return;
    if (mapping->first == open_) open_ = nullptr, left_ = 0;
    munmap(mapping->second.address, mapping->second.bytes);
    mappings_.erase(mapping);
  }

  Device device() const override { return {}; }

 private:
  struct Mapping {
    void* address;
    std::size_t bytes, blocks;
  };

  void open(std::size_t usable) {
    const std::size_t bytes = round_up(usable, kHugePage) + kHugePage;  // room to begin at a huge page
    void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) fail(ErrorKind::kResource, "no memory for {} more bytes", usable);
    madvise(address, bytes, MADV_HUGEPAGE);  // where the system has none, small pages do the same more slowly
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    next_ = static_cast<char*>(address) + (round_up(at, kHugePage) - at);
    left_ = round_up(usable, kHugePage);
    mappings_[next_] = {address, bytes, 0};
    open_ = next_;
  }

  std::mutex mutex_;
  std::map<char*, Mapping> mappings_;  // by their first usable byte
  char* open_ = nullptr;               // the one that blocks come from
  char* next_ = nullptr;
  std::size_t left_ = 0;
};

}  // namespace

std::shared_ptr<MemoryResource> weight_memory() {
  static const std::shared_ptr<MemoryResource> memory = std::make_shared<WeightMemory>();
  return memory;
}

}  // namespace llmq

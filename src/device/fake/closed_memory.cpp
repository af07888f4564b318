#include "device/fake/closed_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"

namespace llmq {
namespace {

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// Bytes from a view's first element to one past its last.
std::size_t extent(const TensorView& view) {
  if (view.rows() == 0 || view.cols() == 0) return 0;
  const std::int64_t elements = (view.rows() - 1) * view.row_stride + view.cols();
  return static_cast<std::size_t>(elements) * static_cast<std::size_t>(element_bytes(view.dtype));
}

}  // namespace

ClosedMemory::~ClosedMemory() {
  for (const auto& [base, region] : regions_) munmap(region.base, region.mapped);
}

void* ClosedMemory::allocate(std::size_t bytes) {
  Region region;
  region.open = round_up(bytes == 0 ? 1 : bytes, page_bytes());
  region.mapped = region.open + page_bytes();
  void* base = mmap(nullptr, region.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) fail(ErrorKind::kResource, "the fake device has no room for {} bytes", bytes);
  region.base = static_cast<char*>(base);
  const std::lock_guard lock(table_);
  regions_[region.base] = region;
  return region.base + (region.open - round_up(bytes, 64));
}

void ClosedMemory::deallocate(void* pointer, std::size_t) noexcept {
  const std::lock_guard lock(table_);
  auto after = regions_.upper_bound(static_cast<const char*>(pointer));
  if (after == regions_.begin()) return;
  const auto it = std::prev(after);
  munmap(it->second.base, it->second.mapped);
  regions_.erase(it);
}

bool ClosedMemory::owns(const void* pointer) const { return find(pointer, 0) != nullptr; }

const ClosedMemory::Region* ClosedMemory::find(const void* pointer, std::size_t bytes) const {
  const std::lock_guard lock(table_);
  const char* first = static_cast<const char*>(pointer);
  const auto after = regions_.upper_bound(first);
  if (after == regions_.begin()) return nullptr;
  const Region& region = std::prev(after)->second;
  const auto offset = static_cast<std::size_t>(first - region.base);
  return offset <= region.open && bytes <= region.open - offset ? &region : nullptr;
}

ClosedMemory::Opening::Opening(ClosedMemory& memory, const char* operation,
                               std::initializer_list<const TensorView*> views)
    : memory_(memory), turn_(memory.turn_) {
  std::vector<const Region*> regions;
  for (const TensorView* view : views) {
    if (view->pointer == nullptr) continue;
    const Region* region = view->device == kFakeDevice ? memory_.find(view->pointer, extent(*view)) : nullptr;
    if (region == nullptr)
      fail(ErrorKind::kInternal, "{} was given a tensor of shape {} that is not in the fake device's memory",
           operation, view->shape.text());
    regions.push_back(region);
  }
  for (const Region* region : regions) {
    if (mprotect(region->base, region->open, PROT_READ | PROT_WRITE) != 0)
      fail(ErrorKind::kResource, "the fake device cannot open {} bytes", region->open);
    opened_.push_back(region->base);
  }
}

ClosedMemory::Opening::~Opening() {
  for (const void* base : opened_) {
    const Region* region = memory_.find(base, 0);
    if (region != nullptr) mprotect(region->base, region->open, PROT_NONE);
  }
}

}  // namespace llmq

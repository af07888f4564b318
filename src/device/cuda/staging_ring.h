// Host memory on its way to a device: pinned slots that are filled in turn, so that a copy runs while the
// next slot is filled, and no slot is written before the copy that reads it has ended. The caller owns the
// slots.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace llmq {

class StagingRing {
 public:
  StagingRing(std::vector<char*> slots, std::size_t slot_bytes)
      : slots_(std::move(slots)), used_(slots_.size(), false), slot_bytes_(slot_bytes) {}

  // For each part of `from`: wait(slot) where an earlier copy read the slot, the part into the slot, then
  // start(slot, its memory, offset, bytes), which begins a copy and notes its end for wait().
  template <class Wait, class Start>
  void pass(const void* from, std::size_t bytes, const Wait& wait, const Start& start) {
    for (std::size_t offset = 0; offset < bytes;) {
      const std::size_t slot = next_, part = std::min(slot_bytes_, bytes - offset);
      next_ = (next_ + 1) % slots_.size();
      if (used_[slot]) wait(slot);
      used_[slot] = true;
      std::memcpy(slots_[slot], static_cast<const char*>(from) + offset, part);
      start(slot, slots_[slot], offset, part);
      offset += part;
    }
  }

 private:
  std::vector<char*> slots_;
  std::vector<bool> used_;
  std::size_t slot_bytes_, next_ = 0;
};

}  // namespace llmq

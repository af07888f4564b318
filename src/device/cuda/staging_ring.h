// Host memory on its way to a device and back: pinned slots that are filled in turn, so that a copy runs
// while the next slot is filled or the one before is emptied, and no slot is written before the copy that
// reads it has ended. The caller owns the slots, and says how bytes get from memory to memory on the host.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

namespace llmq {

class StagingRing {
 public:
  using Copy = std::function<void(void* to, const void* from, std::size_t bytes)>;

  StagingRing(std::vector<char*> slots, std::size_t slot_bytes, Copy copy = std::memcpy)
      : slots_(std::move(slots)),
        used_(slots_.size(), false),
        slot_bytes_(slot_bytes),
        copy_(std::move(copy)) {}

  // For each part of `from`: wait(slot) where an earlier copy read the slot, the part into the slot, then
  // start(slot, its memory, offset, bytes), which begins a copy and notes its end for wait().
  template <class Wait, class Start>
  void pass(const void* from, std::size_t bytes, const Wait& wait, const Start& start) {
    for (std::size_t offset = 0; offset < bytes;) {
      const std::size_t part = std::min(slot_bytes_, bytes - offset), slot = take(wait);
      copy_(slots_[slot], static_cast<const char*>(from) + offset, part);
      start(slot, slots_[slot], offset, part);
      offset += part;
    }
  }

  // The other way, to `to`: start(slot, its memory, offset, bytes) begins a copy into the slot and notes its
  // end for wait(). As many are under way at once as there are slots.
  template <class Wait, class Start>
  void fetch(void* to, std::size_t bytes, const Wait& wait, const Start& start) {
    struct Part {
      std::size_t slot, offset, bytes;
    };
    std::vector<Part> begun;
    std::size_t emptied = 0;
    const auto empty = [&] {
      const Part& part = begun[emptied++];
      wait(part.slot);
      used_[part.slot] = false;
      copy_(static_cast<char*>(to) + part.offset, slots_[part.slot], part.bytes);
    };
    for (std::size_t offset = 0; offset < bytes; offset += slot_bytes_) {
      if (begun.size() - emptied == slots_.size()) empty();
      const std::size_t part = std::min(slot_bytes_, bytes - offset), slot = take(wait);
      begun.push_back({slot, offset, part});
      start(slot, slots_[slot], offset, part);
    }
    while (emptied < begun.size()) empty();
  }

 private:
  template <class Wait>
  std::size_t take(const Wait& wait) {
    const std::size_t slot = next_;
    next_ = (next_ + 1) % slots_.size();
    if (used_[slot]) wait(slot);
    used_[slot] = true;
    return slot;
  }

  std::vector<char*> slots_;
  std::vector<bool> used_;
  std::size_t slot_bytes_, next_ = 0;
  Copy copy_;
};

}  // namespace llmq

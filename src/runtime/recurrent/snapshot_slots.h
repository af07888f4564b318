// Which snapshot of a recurrent state belongs to which prefix: numbers only, no state and no backend.
//
// A fixed number of places. One is taken for a step that will fill it, and is either offered under the key of
// the prefix (kv_blocks.h) or given back. When none is free, the prefix that was found or offered longest ago
// loses its snapshot. Every call is O(log places).
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace llmq {

using BlockKey = std::array<std::uint8_t, 32>;

class SnapshotSlots {
 public:
  explicit SnapshotSlots(std::int32_t count);

  // A place that nobody reads from the next step on; none where all are being filled.
  std::optional<std::int32_t> take();
  void give_back(std::int32_t slot) { free_.push_back(slot); }  // one that was taken
  // A place that was taken, and is filled now. Where the prefix has one already, this one is given back.
  void offer(std::int32_t slot, const BlockKey& key);
  bool has(const BlockKey& key) const { return by_key_.count(key) != 0; }
  std::int32_t use(const BlockKey& key);  // one that has() knows
  void withdraw(const BlockKey& key);     // unknown ones too

  std::int32_t total() const { return static_cast<std::int32_t>(used_at_.size()); }
  std::int32_t offered() const { return static_cast<std::int32_t>(by_key_.size()); }
  std::int32_t free() const { return static_cast<std::int32_t>(free_.size()); }

 private:
  void touch(std::int32_t slot, const BlockKey& key);

  std::vector<std::int32_t> free_;
  std::map<BlockKey, std::int32_t> by_key_;
  std::map<std::uint64_t, BlockKey> by_age_;  // the longest unused first
  std::vector<std::uint64_t> used_at_;        // by place: its age in by_age_
  std::uint64_t clock_ = 0;
};

}  // namespace llmq

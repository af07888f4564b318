#include "runtime/recurrent/snapshot_slots.h"

namespace llmq {

SnapshotSlots::SnapshotSlots(std::int32_t count) : used_at_(static_cast<std::size_t>(count)) {
  for (std::int32_t slot = count; slot > 0; --slot) free_.push_back(slot - 1);
}

std::optional<std::int32_t> SnapshotSlots::take() {
  if (free_.empty()) {
    if (by_age_.empty()) return std::nullopt;
    withdraw(BlockKey(by_age_.begin()->second));
  }
  const std::int32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void SnapshotSlots::offer(std::int32_t slot, const BlockKey& key) {
  if (!by_key_.emplace(key, slot).second) return give_back(slot);
  touch(slot, key);
}

std::int32_t SnapshotSlots::use(const BlockKey& key) {
  const std::int32_t slot = by_key_.at(key);
  by_age_.erase(used_at_[static_cast<std::size_t>(slot)]);
  touch(slot, key);
  return slot;
}

void SnapshotSlots::withdraw(const BlockKey& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return;
  by_age_.erase(used_at_[static_cast<std::size_t>(found->second)]);
  give_back(found->second);
  by_key_.erase(found);
}

void SnapshotSlots::touch(std::int32_t slot, const BlockKey& key) {
  used_at_[static_cast<std::size_t>(slot)] = ++clock_;
  by_age_.emplace(clock_, key);
}

}  // namespace llmq

#include "runtime/kv_blocks.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/sha256.h"
#include "kernels/common/look_back.h"

namespace llmq {
namespace {

BlockKey next_key(const BlockKey& key, std::span<const std::int32_t> tokens) {
  std::string bytes(key.begin(), key.end());
  for (const std::int32_t token : tokens)
    for (int shift = 0; shift < 32; shift += 8)
      bytes += static_cast<char>(static_cast<std::uint32_t>(token) >> shift & 0xff);
  return sha256_bytes(bytes);
}

}  // namespace

std::int64_t most_kv_blocks(const KvWindow& window, int block_size, std::int64_t positions,
                            std::int64_t step) {
  const auto blocks_for = [&](std::int64_t count) { return (count - 1) / block_size + 1; };
  if (window.positions == 0) return blocks_for(positions);
  // What a step looks at, and what the roundings down to a grain and to a block add in front of it.
  return blocks_for(std::min(positions, window.positions - 1 + (window.grain - 1) + (block_size - 1) + step));
}

std::int64_t most_kv_blocks(std::span<const KvWindow> groups, int block_size, std::int64_t positions,
                            std::int64_t step) {
  std::int64_t blocks = 0;
  for (const KvWindow& window : groups) blocks += most_kv_blocks(window, block_size, positions, step);
  return blocks;
}

KvBlocks::KvBlocks(std::int32_t blocks, int block_size, bool prefix_caching, std::vector<KvWindow> groups)
    : KvBlocks(std::span(&blocks, 1), block_size, prefix_caching, groups,
               std::vector<std::size_t>(groups.size(), 0)) {}

KvBlocks::KvBlocks(std::span<const std::int32_t> pools, int block_size, bool prefix_caching,
                   std::vector<KvWindow> groups, std::vector<std::size_t> pool_of)
    : block_size_(block_size),
      prefix_caching_(prefix_caching),
      windows_(std::move(groups)),
      pool_of_(std::move(pool_of)),
      published_(windows_.size()) {
  for (const std::int32_t blocks : pools) {
    if (blocks < 1 || block_size < 1 || windows_.empty())
      fail(ErrorKind::kUsage, "a KV cache of {} blocks of {} positions holds nothing", blocks, block_size);
    pools_.push_back({total(), blocks});
    blocks_.resize(blocks_.size() + static_cast<std::size_t>(blocks));
    for (std::int32_t block = pools_.back().begin; block < total(); ++block)
      link(block, pools_.back().last, -1);
  }
  for (const std::size_t pool : pool_of_) ++pools_.at(pool).groups;
}

std::int32_t KvBlocks::free() const {
  std::int32_t sum = 0;
  for (const Pool& pool : pools_) sum += pool.free;
  return sum;
}

std::size_t KvBlocks::pool_of_block(std::int32_t block) const {
  std::size_t pool = pools_.size() - 1;
  while (pools_[pool].begin > block) --pool;
  return pool;
}

std::int64_t KvBlocks::positions() const {
  std::int32_t most = 0;
  for (const Pool& pool : pools_) most = std::max(most, pool.count / pool.groups);
  return most * std::int64_t{block_size_};
}

bool KvBlocks::has_windows() const {
  return std::any_of(windows_.begin(), windows_.end(),
                     [](const KvWindow& window) { return window.positions != 0; });
}

std::int64_t KvBlocks::missing_blocks(const KvTable& table, std::int64_t positions, std::int64_t step,
                                      std::size_t pool) const {
  std::int64_t missing = 0;
  for (std::size_t group = 0; group < windows_.size(); ++group) {
    if (pool_of_[group] != pool) continue;
    const auto passed = static_cast<std::int64_t>(table.groups[group].passed),
               has = static_cast<std::int64_t>(table.groups[group].blocks.size()) - passed,
               wanted = std::min(blocks_for(positions) - passed,
                                 most_kv_blocks(windows_[group], block_size_, positions, step));
    missing += std::max<std::int64_t>(0, wanted - has);
  }
  return missing;
}

bool KvBlocks::holds(std::int64_t positions, std::int64_t step) const {
  for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
    std::int64_t most = 0;
    for (std::size_t group = 0; group < windows_.size(); ++group)
      if (pool_of_[group] == pool) most += most_kv_blocks(windows_[group], block_size_, positions, step);
    if (most > pools_[pool].count) return false;
  }
  return true;
}

bool KvBlocks::has_room(const KvTable& table, std::int64_t positions, std::int64_t step) const {
  for (std::size_t pool = 0; pool < pools_.size(); ++pool)
    if (missing_blocks(table, positions, step, pool) > pools_[pool].free) return false;
  return true;
}

// Between two neighbours of its pool's free list, -1 for none.
void KvBlocks::link(std::int32_t block, std::int32_t before, std::int32_t after) {
  Pool& pool = pools_[pool_of_block(block)];
  at(block).before = before;
  at(block).after = after;
  (before < 0 ? pool.first : at(before).after) = block;
  (after < 0 ? pool.last : at(after).before) = block;
  ++pool.free;
}

void KvBlocks::unlink(std::int32_t block) {
  Pool& pool = pools_[pool_of_block(block)];
  const Block& gone = at(block);
  (gone.before < 0 ? pool.first : at(gone.before).after) = gone.after;
  (gone.after < 0 ? pool.last : at(gone.after).before) = gone.before;
  --pool.free;
}

// The caller knows that there is one.
std::int32_t KvBlocks::take(std::size_t group) {
  const std::int32_t block = pools_[pool_of_[group]].first;
  if (block < 0) fail(ErrorKind::kInternal, "a block was taken from an empty list");
  withdraw(block);
  retain(block);
  return block;
}

void KvBlocks::retain(std::int32_t block) {
  if (at(block).references++ == 0) unlink(block);
}

void KvBlocks::release(std::int32_t block) {
  if (--at(block).references > 0) return;
  const Pool& pool = pools_[pool_of_block(block)];
  if (at(block).key)
    link(block, pool.last, -1);
  else
    link(block, -1, pool.first);
}

void KvBlocks::withdraw(std::int32_t block) {
  if (!at(block).key) return;
  published_[at(block).group].erase(*at(block).key);
  if (snapshots_) snapshots_->withdraw(*at(block).key);
  at(block).key.reset();
}

// A prefix that is already offered by another block stays with that one.
void KvBlocks::offer(std::int32_t block, std::size_t group, const BlockKey& key) {
  if (at(block).key || !published_[group].emplace(key, block).second) return;
  at(block).key = key;
  at(block).group = group;
}

KvTable KvBlocks::open(std::string_view salt, bool shares) const {
  KvTable table;
  table.groups.resize(windows_.size());
  table.shares = shares;
  table.keys.push_back(sha256_bytes(salt));
  return table;
}

// How many blocks at the front no position from `length` on looks at.
std::size_t KvBlocks::passed(std::size_t group, std::int64_t length) const {
  const KvWindow& window = windows_[group];
  const std::int64_t unseen = LookBack{window.positions, window.chunks}.first_seen(length);
  return static_cast<std::size_t>(unseen / window.grain * window.grain / block_size_);
}

std::int64_t KvBlocks::take_prefix(KvTable& table, std::span<const std::int32_t> tokens) {
  if (table.length != 0)
    fail(ErrorKind::kInternal, "a prefix is looked up for a sequence of {} positions", table.length);
  table.found = table.parts_at = 0;
  if (!prefix_caching_ || !table.shares || tokens.empty()) return 0;
  const auto size = static_cast<std::size_t>(block_size_);
  std::size_t usable = 0;                                 // blocks
  std::vector<std::size_t> unbroken(windows_.size(), 0);  // by group: those there without a gap up to here
  bool goes_on = true;
  for (std::size_t start = 0; goes_on && start + size < tokens.size(); start += size) {
    const std::size_t count = start / size + 1;
    const BlockKey key = next_key(table.keys.back(), tokens.subspan(start, size));
    table.keys.push_back(key);
    bool is_usable = true;
    for (std::size_t group = 0; group < windows_.size(); ++group) {
      const auto found = published_[group].find(key);
      const bool there = found != published_[group].end();
      table.groups[group].blocks.push_back(there ? found->second : kNoBlock);
      unbroken[group] = there ? unbroken[group] + 1 : 0;
      is_usable &= unbroken[group] >= count - passed(group, static_cast<std::int64_t>(count * size));
      goes_on &= there || windows_[group].positions != 0;
    }
    if (!is_usable) continue;
    if (!snapshots_ || snapshots_->has(key))
      usable = count;
    else
      table.parts_at = static_cast<std::int64_t>(count * size);
  }
  table.keys.resize(usable + 1);
  table.length = static_cast<std::int64_t>(usable * size);
  for (std::size_t group = 0; group < windows_.size(); ++group) {
    PageTable& own = table.groups[group];
    own.blocks.resize(usable);
    own.passed = passed(group, table.length);
    for (std::size_t i = 0; i < usable; ++i)
      if (i < own.passed)
        own.blocks[i] = kNoBlock;
      else
        retain(own.blocks[i]);
  }
  return table.found = table.length;
}

std::int32_t KvBlocks::snapshot_of(const KvTable& table) {
  return snapshots_ && table.length > 0 ? snapshots_->use(table.keys.back()) : kNoSnapshot;
}

void KvBlocks::take_places(const KvTable& table, std::uint64_t sequence, std::int64_t prompt,
                           std::int64_t first, std::int64_t end, std::vector<SnapshotPlace>& places) {
  if (!snapshots_ || !prefix_caching_ || !table.shares) return;
  const std::int64_t last = (prompt - 1) / block_size_ * block_size_;
  std::int64_t before = table.found;
  for (const std::int64_t position : {std::min(table.parts_at, last), last}) {
    if (position - before < apart_) continue;
    before = position;
    if (position <= first || position > end) continue;
    if (const auto slot = snapshots_->take()) places.push_back({sequence, position, *slot});
  }
}

void KvBlocks::take_place_of_answer(const KvTable& table, const SnapshotPlace& last, std::uint64_t sequence,
                                    std::int64_t prompt, std::int64_t first, std::int64_t end,
                                    std::vector<SnapshotPlace>& places) {
  if (!snapshots_ || !prefix_caching_ || !table.shares) return;
  const std::int64_t position = end / block_size_ * block_size_;
  if (position <= first || position - std::max(last.position, prompt) < apart_) return;
  std::int32_t slot = last.slot;
  if (slot == kNoSnapshot) {
    if (2 * (of_answers_ + 1) > snapshots_->total()) return;
    const auto taken = snapshots_->take();
    if (!taken) return;
    slot = *taken;
    ++of_answers_;
  }
  places.push_back({sequence, position, slot, true});
}

void KvBlocks::drop(const SnapshotPlace& place) {
  of_answers_ -= place.of_answer;
  snapshots_->give_back(place.slot);
}

// Where the pages of the prefix are not there for others, nobody would find it.
void KvBlocks::offer(const KvTable& table, const SnapshotPlace& place) {
  const auto index = static_cast<std::size_t>(place.position / block_size_);
  const auto is_there = [&](const std::map<BlockKey, std::int32_t>& published) {
    return published.count(table.keys[index]) != 0;
  };
  if (index < table.keys.size() && std::all_of(published_.begin(), published_.end(), is_there))
    snapshots_->offer(place.slot, table.keys[index]);
  else
    snapshots_->give_back(place.slot);
  of_answers_ -= place.of_answer;
}

// Whether every pool has the wanted(group, of the table) blocks of its groups.
template <class Wanted>
bool KvBlocks::has_free(const KvTable& table, const Wanted& wanted) const {
  for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
    std::int64_t all = 0;
    for (std::size_t group = 0; group < windows_.size(); ++group)
      if (pool_of_[group] == pool) all += wanted(group, table.groups[group]);
    if (all > pools_[pool].free) return false;
  }
  return true;
}

bool KvBlocks::reserve(KvTable& table, std::int64_t length, std::vector<BlockCopy>& copies) {
  if (length <= table.length) return true;
  const bool part_used = table.length % block_size_ != 0;
  const auto shared = [&](const PageTable& own) { return part_used && at(own.blocks.back()).references > 1; };
  const std::int64_t more = blocks_for(length) - blocks_for(table.length);
  if (!has_free(table, [&](std::size_t, const PageTable& own) { return more + (shared(own) ? 1 : 0); }))
    return false;
  for (std::size_t group = 0; group < windows_.size(); ++group) {
    PageTable& own = table.groups[group];
    if (shared(own)) {
      const std::int32_t copy = take(group);
      copies.push_back({own.blocks.back(), copy});
      release(own.blocks.back());
      own.blocks.back() = copy;
    } else if (part_used) {
      withdraw(own.blocks.back());
    }
    for (std::int64_t i = 0; i < more; ++i) own.blocks.push_back(take(group));
  }
  table.length = length;
  return true;
}

bool KvBlocks::reserve_seen(KvTable& table, std::int64_t length) {
  const auto count = static_cast<std::size_t>(blocks_for(length));
  const auto wanted = [&](std::size_t group, const PageTable& own) {
    const std::size_t there = std::max(own.blocks.size(), passed(group, length));
    return static_cast<std::int64_t>(count - std::min(count, there));
  };
  if (!has_free(table, wanted)) return false;
  for (std::size_t group = 0; group < windows_.size(); ++group) {
    std::vector<std::int32_t>& own = table.groups[group].blocks;
    while (own.size() < count) own.push_back(own.size() < passed(group, length) ? kNoBlock : take(group));
  }
  table.length = length;
  release_passed(table);
  return true;
}

void KvBlocks::truncate(KvTable& table, std::int64_t length) {
  if (length < 0 || length > table.length)
    fail(ErrorKind::kInternal, "a sequence of {} positions cannot be cut to {}", table.length, length);
  for (std::size_t group = 0; group < table.groups.size(); ++group)
    if (length > 0 && passed(group, length) < table.groups[group].passed)
      fail(ErrorKind::kInternal, "a sequence of {} positions cannot be cut to {}: its window has passed",
           table.length, length);
  const auto kept = static_cast<std::size_t>(blocks_for(length));
  for (auto blocks = static_cast<std::size_t>(blocks_for(table.length)); blocks > kept; --blocks)
    for (PageTable& own : table.groups) {
      if (own.blocks.back() != kNoBlock) release(own.blocks.back());
      own.blocks.pop_back();
    }
  for (PageTable& own : table.groups) own.passed = std::min(own.passed, kept);
  table.length = length;
  const auto full = static_cast<std::size_t>(length / block_size_);
  if (table.keys.size() > full + 1) table.keys.resize(full + 1);
}

void KvBlocks::release_passed(KvTable& table) {
  for (std::size_t group = 0; group < table.groups.size(); ++group) {
    PageTable& own = table.groups[group];
    for (const std::size_t end = passed(group, table.length); own.passed < end; ++own.passed)
      if (const std::int32_t block = std::exchange(own.blocks[own.passed], kNoBlock); block != kNoBlock)
        release(block);
  }
}

void KvBlocks::publish(KvTable& table, std::span<const std::int32_t> tokens) {
  if (!prefix_caching_ || !table.shares) return;
  const auto size = static_cast<std::size_t>(block_size_);
  const auto computed = std::min(static_cast<std::int64_t>(tokens.size()), table.length);
  for (std::size_t index = table.keys.size() - 1; static_cast<std::int64_t>((index + 1) * size) <= computed;
       ++index) {
    const BlockKey key = next_key(table.keys.back(), tokens.subspan(index * size, size));
    for (std::size_t group = 0; group < table.groups.size(); ++group)
      if (const std::int32_t block = table.groups[group].blocks[index]; block != kNoBlock)
        offer(block, group, key);
    table.keys.push_back(key);
  }
}

KvTable KvBlocks::fork(const KvTable& table) {
  for (const PageTable& own : table.groups)
    for (std::size_t i = own.passed; i < own.blocks.size(); ++i) retain(own.blocks[i]);
  return table;
}

}  // namespace llmq

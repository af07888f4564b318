#include "runtime/kv_blocks.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/sha256.h"

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
    : block_size_(block_size),
      prefix_caching_(prefix_caching),
      windows_(std::move(groups)),
      published_(windows_.size()) {
  if (blocks < 1 || block_size < 1 || windows_.empty())
    fail(ErrorKind::kUsage, "a KV cache of {} blocks of {} positions holds nothing", blocks, block_size);
  blocks_.resize(static_cast<std::size_t>(blocks));
  for (std::int32_t block = 0; block < blocks; ++block) link(block, last_, -1);
}

bool KvBlocks::has_windows() const {
  return std::any_of(windows_.begin(), windows_.end(),
                     [](const KvWindow& window) { return window.positions != 0; });
}

std::int64_t KvBlocks::missing_blocks(const KvTable& table, std::int64_t positions, std::int64_t step) const {
  std::int64_t missing = 0;
  for (std::size_t group = 0; group < windows_.size(); ++group) {
    const auto passed = static_cast<std::int64_t>(table.groups[group].passed),
               has = static_cast<std::int64_t>(table.groups[group].blocks.size()) - passed,
               wanted = std::min(blocks_for(positions) - passed,
                                 most_kv_blocks(windows_[group], block_size_, positions, step));
    missing += std::max<std::int64_t>(0, wanted - has);
  }
  return missing;
}

// Between two neighbours of the free list, -1 for none.
void KvBlocks::link(std::int32_t block, std::int32_t before, std::int32_t after) {
  at(block).before = before;
  at(block).after = after;
  (before < 0 ? first_ : at(before).after) = block;
  (after < 0 ? last_ : at(after).before) = block;
  ++free_;
}

void KvBlocks::unlink(std::int32_t block) {
  const Block& gone = at(block);
  (gone.before < 0 ? first_ : at(gone.before).after) = gone.after;
  (gone.after < 0 ? last_ : at(gone.after).before) = gone.before;
  --free_;
}

// The caller knows that there is one.
std::int32_t KvBlocks::take() {
  const std::int32_t block = first_;
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
  if (at(block).key)
    link(block, last_, -1);
  else
    link(block, -1, first_);
}

void KvBlocks::withdraw(std::int32_t block) {
  if (!at(block).key) return;
  published_[at(block).group].erase(*at(block).key);
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
  const std::int64_t unseen = length - window.positions + 1;
  if (window.positions == 0 || unseen <= 0) return 0;
  return static_cast<std::size_t>(unseen / window.grain * window.grain / block_size_);
}

std::int64_t KvBlocks::take_prefix(KvTable& table, std::span<const std::int32_t> tokens) {
  if (table.length != 0)
    fail(ErrorKind::kInternal, "a prefix is looked up for a sequence of {} positions", table.length);
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
    if (is_usable) usable = count;
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
  return table.length;
}

bool KvBlocks::reserve(KvTable& table, std::int64_t length, std::vector<BlockCopy>& copies) {
  if (length <= table.length) return true;
  const bool part_used = table.length % block_size_ != 0;
  const auto shared = [&](const PageTable& own) { return part_used && at(own.blocks.back()).references > 1; };
  const std::int64_t more = blocks_for(length) - blocks_for(table.length);
  std::int64_t wanted = 0;
  for (const PageTable& own : table.groups) wanted += more + (shared(own) ? 1 : 0);
  if (wanted > free_) return false;
  for (PageTable& own : table.groups) {
    if (shared(own)) {
      const std::int32_t copy = take();
      copies.push_back({own.blocks.back(), copy});
      release(own.blocks.back());
      own.blocks.back() = copy;
    } else if (part_used) {
      withdraw(own.blocks.back());
    }
    for (std::int64_t i = 0; i < more; ++i) own.blocks.push_back(take());
  }
  table.length = length;
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
      release(std::exchange(own.blocks[own.passed], kNoBlock));
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

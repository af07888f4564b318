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

KvBlocks::KvBlocks(std::int32_t blocks, int block_size, bool prefix_caching, KvWindow window)
    : block_size_(block_size), prefix_caching_(prefix_caching), window_(window) {
  if (blocks < 1 || block_size < 1)
    fail(ErrorKind::kUsage, "a KV cache of {} blocks of {} positions holds nothing", blocks, block_size);
  blocks_.resize(static_cast<std::size_t>(blocks));
  for (std::int32_t block = 0; block < blocks; ++block) link(block, last_, -1);
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
  published_.erase(*at(block).key);
  at(block).key.reset();
}

KvTable KvBlocks::open(std::string_view salt, bool shares) const {
  KvTable table;
  table.shares = shares;
  table.keys.push_back(sha256_bytes(salt));
  return table;
}

// How many blocks at the front no position from `length` on looks at.
std::size_t KvBlocks::passed(std::int64_t length) const {
  const std::int64_t unseen = length - window_.positions + 1;
  if (window_.positions == 0 || unseen <= 0) return 0;
  return static_cast<std::size_t>(unseen / window_.grain * window_.grain / block_size_);
}

std::int64_t KvBlocks::take_prefix(KvTable& table, std::span<const std::int32_t> tokens) {
  if (table.length != 0)
    fail(ErrorKind::kInternal, "a prefix is looked up for a sequence of {} positions", table.length);
  if (!prefix_caching_ || !table.shares || tokens.empty()) return 0;
  const auto size = static_cast<std::size_t>(block_size_);
  std::size_t usable = 0, unbroken = 0;  // blocks; those there without a gap up to here
  for (std::size_t start = 0; start + size < tokens.size(); start += size) {
    const BlockKey key = next_key(table.keys.back(), tokens.subspan(start, size));
    const auto found = published_.find(key);
    const bool there = found != published_.end();
    if (!there && window_.positions == 0) break;
    unbroken = there ? unbroken + 1 : 0;
    table.blocks.push_back(there ? found->second : kNoBlock);
    table.keys.push_back(key);
    const std::size_t count = table.blocks.size();
    if (unbroken >= count - passed(static_cast<std::int64_t>(count * size))) usable = count;
  }
  table.blocks.resize(usable);
  table.keys.resize(usable + 1);
  table.length = static_cast<std::int64_t>(usable * size);
  table.passed = passed(table.length);
  for (std::size_t i = 0; i < usable; ++i)
    if (i < table.passed)
      table.blocks[i] = kNoBlock;
    else
      retain(table.blocks[i]);
  return table.length;
}

bool KvBlocks::reserve(KvTable& table, std::int64_t length, std::vector<BlockCopy>& copies) {
  if (length <= table.length) return true;
  const bool part_used = table.length % block_size_ != 0;
  const bool shared = part_used && at(table.blocks.back()).references > 1;
  const std::int64_t more = blocks_for(length) - static_cast<std::int64_t>(table.blocks.size());
  if (more + (shared ? 1 : 0) > free_) return false;
  if (shared) {
    const std::int32_t own = take();
    copies.push_back({table.blocks.back(), own});
    release(table.blocks.back());
    table.blocks.back() = own;
  } else if (part_used) {
    withdraw(table.blocks.back());
  }
  for (std::int64_t i = 0; i < more; ++i) table.blocks.push_back(take());
  table.length = length;
  return true;
}

void KvBlocks::truncate(KvTable& table, std::int64_t length) {
  if (length < 0 || length > table.length)
    fail(ErrorKind::kInternal, "a sequence of {} positions cannot be cut to {}", table.length, length);
  if (length > 0 && passed(length) < table.passed)
    fail(ErrorKind::kInternal, "a sequence of {} positions cannot be cut to {}: its window has passed",
         table.length, length);
  const auto kept = static_cast<std::size_t>(blocks_for(length));
  while (table.blocks.size() > kept) {
    if (table.blocks.back() != kNoBlock) release(table.blocks.back());
    table.blocks.pop_back();
  }
  table.length = length;
  table.passed = std::min(table.passed, kept);
  const auto full = static_cast<std::size_t>(length / block_size_);
  if (table.keys.size() > full + 1) table.keys.resize(full + 1);
}

void KvBlocks::release_passed(KvTable& table) {
  for (const std::size_t end = passed(table.length); table.passed < end; ++table.passed)
    release(std::exchange(table.blocks[table.passed], kNoBlock));
}

void KvBlocks::publish(KvTable& table, std::span<const std::int32_t> tokens) {
  if (!prefix_caching_ || !table.shares) return;
  const auto size = static_cast<std::size_t>(block_size_);
  const auto computed = std::min(static_cast<std::int64_t>(tokens.size()), table.length);
  for (std::size_t index = table.keys.size() - 1; static_cast<std::int64_t>((index + 1) * size) <= computed;
       ++index) {
    const BlockKey key = next_key(table.keys.back(), tokens.subspan(index * size, size));
    const std::int32_t block = table.blocks[index];
    if (block != kNoBlock && !at(block).key && published_.emplace(key, block).second) at(block).key = key;
    table.keys.push_back(key);
  }
}

KvTable KvBlocks::fork(const KvTable& table) {
  for (std::size_t i = table.passed; i < table.blocks.size(); ++i) retain(table.blocks[i]);
  return table;
}

}  // namespace llmq

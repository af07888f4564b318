// Which page of the KV cache holds which positions of which sequence: numbers only, no page and no backend.
//
// A fixed number of blocks of `block_size` positions, each with a count of the sequences that have it in
// their table. A block that is full can be published under the key of everything up to its end,
//
//   key(0) = SHA-256(salt),   key(i+1) = SHA-256(key(i), tokens of block i),
//
// so that a later sequence of the same tenant (salt) with the same first tokens takes it instead of computing
// it. SHA-256 makes two different prefixes with one key impossible in practice, so tokens are not compared
// again. Blocks that no sequence has stay published until they are needed for something else: blocks without
// contents first, then the least recently used. A sequence gives its blocks back last one first, so that the
// end of a prefix goes before its start.
//
// Where positions look back only so far (KvWindow), the blocks that nothing will look at again are given back
// while their sequence goes on, and a prefix is found where its end is there, as far back as what follows
// looks. Keys are chained over all of it as before.
//
// Layers that look back differently far are page groups: a sequence has a list of blocks for each group, all
// of which come from one pool, so a block holds the positions of one group's layers, and all groups have
// equally many layers. What a window passes is given back for its group alone; room is there in all groups or
// in none; a prefix is found where it is there for every group, as far back as that group looks.
//
// A block is written only by the one sequence that has it, and never while published: reserve() gives a
// sequence a copy of its own first (copy-on-write) and says what to copy. Every call is O(blocks it touches).
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace llmq {

using BlockKey = std::array<std::uint8_t, 32>;

// Copy the contents of one page before anything is written.
struct BlockCopy {
  std::int32_t from, to;
};

// A page on the device and its place among the host's.
struct PageSwap {
  std::int32_t block, slot;
};

// Position p looks at those from p - positions + 1 on, and may touch those before them down to a multiple of
// `grain`.
struct KvWindow {
  std::int64_t positions = 0;  // 0: all
  std::int64_t grain = 1;
};

inline constexpr std::int32_t kNoBlock = -1;

// What one sequence has of one page group: as many blocks in each.
struct PageTable {
  std::vector<std::int32_t> blocks;  // kNoBlock at the front, where the window has passed
  std::size_t passed = 0;            // so many
};

// What one sequence has. Made by KvBlocks, changed only by it.
struct KvTable {
  std::vector<PageTable> groups;
  std::int64_t length = 0;     // positions it has room for, exactly: the last block may be part used
  std::vector<BlockKey> keys;  // key(0), then those of the blocks at the front that were offered
  bool shares = true;          // prefixes, both ways
};

// The most that a sequence has at once on its way to `positions`, if it is run at most `step` at a time and
// gives back what it passed: of one group, and of all of these.
std::int64_t most_kv_blocks(const KvWindow& window, int block_size, std::int64_t positions,
                            std::int64_t step);
std::int64_t most_kv_blocks(std::span<const KvWindow> groups, int block_size, std::int64_t positions,
                            std::int64_t step);

class KvBlocks {
 public:
  // `groups`: how far back each page group looks.
  KvBlocks(std::int32_t blocks, int block_size, bool prefix_caching = true,
           std::vector<KvWindow> groups = {KvWindow{}});

  // An empty table; sequences share prefixes only with the same salt, and only where they share any.
  KvTable open(std::string_view salt = {}, bool shares = true) const;
  // Puts published blocks with the first of `tokens` into an empty table, never all of the tokens: the last
  // one is always left to compute. Returns the positions that were found.
  std::int64_t take_prefix(KvTable& table, std::span<const std::int32_t> tokens);
  // Room for `length` positions in blocks that the sequence may write from its present length on, in every
  // group; or false and no change.
  bool reserve(KvTable& table, std::int64_t length, std::vector<BlockCopy>& copies);
  // Gives back the blocks that no position from the table's length on looks at, group by group.
  void release_passed(KvTable& table);
  // Keeps the positions below `length`, which may be 0 or one whose windows are still there.
  void truncate(KvTable& table, std::int64_t length);
  // Offers the blocks that `tokens`, whose pages are computed, fill. A prefix that is already offered by
  // another block stays with that one.
  void publish(KvTable& table, std::span<const std::int32_t> tokens);
  // Another sequence with the same contents (parallel samples).
  KvTable fork(const KvTable& table);
  void close(KvTable& table) { truncate(table, 0); }

  std::int32_t total() const { return static_cast<std::int32_t>(blocks_.size()); }
  std::int32_t free() const { return free_; }  // published or not
  int block_size() const { return block_size_; }
  std::size_t groups() const { return windows_.size(); }
  // Whether pages are given back while their sequence goes on.
  bool has_windows() const;
  // Room for so many in sequences that keep all of their pages.
  std::int64_t positions() const {
    return total() / static_cast<std::int32_t>(windows_.size()) * std::int64_t{block_size_};
  }
  std::int32_t references(std::int32_t block) const { return at(block).references; }
  bool is_published(std::int32_t block) const { return at(block).key.has_value(); }
  std::int64_t blocks_for(std::int64_t positions) const {
    return (positions + block_size_ - 1) / block_size_;
  }
  // most_kv_blocks() of these groups, and how many of them a table lacks.
  std::int64_t most_blocks(std::int64_t positions, std::int64_t step) const {
    return most_kv_blocks(windows_, block_size_, positions, step);
  }
  std::int64_t missing_blocks(const KvTable& table, std::int64_t positions, std::int64_t step) const;

 private:
  // Free blocks are a list in the order in which they are taken.
  struct Block {
    std::int32_t references = 0, before = 0, after = 0;
    std::optional<BlockKey> key;
    std::size_t group = 0;  // that it is published for
  };

  Block& at(std::int32_t block) { return blocks_[static_cast<std::size_t>(block)]; }
  const Block& at(std::int32_t block) const { return blocks_[static_cast<std::size_t>(block)]; }
  void link(std::int32_t block, std::int32_t before, std::int32_t after);
  void unlink(std::int32_t block);
  std::int32_t take();
  void retain(std::int32_t block);
  void release(std::int32_t block);
  void withdraw(std::int32_t block);
  void offer(std::int32_t block, std::size_t group, const BlockKey& key);
  std::size_t passed(std::size_t group, std::int64_t length) const;

  int block_size_;
  bool prefix_caching_;
  std::vector<KvWindow> windows_;  // by group
  std::int32_t free_ = 0, first_ = -1, last_ = -1;
  std::vector<Block> blocks_;
  std::vector<std::map<BlockKey, std::int32_t>> published_;  // by group
};

}  // namespace llmq

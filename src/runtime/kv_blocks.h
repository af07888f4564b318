// Which page of the KV cache holds which positions of which sequence: numbers only, no page and no backend.
//
// A fixed number of blocks of `block_size` positions, each with a count of the sequences that have it in their table. A block
// that is full can be published under the key of everything up to its end,
//
//   key(0) = SHA-256(salt),   key(i+1) = SHA-256(key(i), tokens of block i),
//
// so that a later sequence of the same tenant (salt) with the same first tokens takes it instead of computing it. SHA-256
// makes two different prefixes with one key impossible in practice, so tokens are not compared again. Blocks that no
// sequence has stay published until they are needed for something else: blocks without contents first, then the least
// recently used. A sequence gives its blocks back last one first, so that the end of a prefix goes before its start.
//
// A block is written only by the one sequence that has it, and never while published: reserve() gives a sequence a copy of
// its own first (copy-on-write) and says what to copy. Every call is O(blocks it touches).
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

// What one sequence has. Made by KvBlocks, changed only by it.
struct KvTable {
  std::vector<std::int32_t> blocks;
  std::int64_t length = 0;     // positions it has room for, exactly: the last block may be part used
  std::vector<BlockKey> keys;  // key(0), then those of the blocks at the front that were offered
  bool shares = true;          // prefixes, both ways
};

class KvBlocks {
 public:
  KvBlocks(std::int32_t blocks, int block_size, bool prefix_caching = true);

  // An empty table; sequences share prefixes only with the same salt, and only where they share any.
  KvTable open(std::string_view salt = {}, bool shares = true) const;
  // Puts published blocks with the first of `tokens` into an empty table, never all of the tokens: the last one is always
  // left to compute. Returns the positions that were found.
  std::int64_t take_prefix(KvTable& table, std::span<const std::int32_t> tokens);
  // Room for `length` positions in blocks that the sequence may write from its present length on; or false and no change.
  bool reserve(KvTable& table, std::int64_t length, std::vector<BlockCopy>& copies);
  // Keeps the positions below `length`.
  void truncate(KvTable& table, std::int64_t length);
  // Offers the blocks that `tokens`, whose pages are computed, fill. A prefix that is already offered by another block
  // stays with that one.
  void publish(KvTable& table, std::span<const std::int32_t> tokens);
  // Another sequence with the same contents (parallel samples).
  KvTable fork(const KvTable& table);
  void close(KvTable& table) { truncate(table, 0); }

  std::int32_t total() const { return static_cast<std::int32_t>(blocks_.size()); }
  std::int32_t free() const { return free_; }  // published or not
  int block_size() const { return block_size_; }
  std::int32_t references(std::int32_t block) const { return at(block).references; }
  bool is_published(std::int32_t block) const { return at(block).key.has_value(); }
  std::int64_t blocks_for(std::int64_t positions) const {
    return (positions + block_size_ - 1) / block_size_;
  }

 private:
  // Free blocks are a list in the order in which they are taken.
  struct Block {
    std::int32_t references = 0, before = 0, after = 0;
    std::optional<BlockKey> key;
  };

  Block& at(std::int32_t block) { return blocks_[static_cast<std::size_t>(block)]; }
  const Block& at(std::int32_t block) const { return blocks_[static_cast<std::size_t>(block)]; }
  void link(std::int32_t block, std::int32_t before, std::int32_t after);
  void unlink(std::int32_t block);
  std::int32_t take();
  void retain(std::int32_t block);
  void release(std::int32_t block);
  void withdraw(std::int32_t block);

  int block_size_;
  bool prefix_caching_;
  std::int32_t free_ = 0, first_ = -1, last_ = -1;
  std::vector<Block> blocks_;
  std::map<BlockKey, std::int32_t> published_;
};

}  // namespace llmq

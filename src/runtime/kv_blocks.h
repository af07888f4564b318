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
// Layers that look back differently far are page groups: a sequence has a list of blocks for each group. A
// block holds the positions of one group's layers, and comes from a pool whose groups have blocks of one
// size: equally many layers of equally many numbers. Blocks are numbered through all pools. What a window
// passes is given back for its group alone; room is there in all groups or in none; a prefix is found where
// it is there for every group, as far back as that group looks.
//
// A model with recurrent states (keep_snapshots) goes on from a prefix only where it has a snapshot of the
// state: a prefix is then found up to the last border of blocks that has one. Sequences leave them, in the
// steps that pass there, at two borders: the last of a prompt that leaves a token to compute, which a longer
// prompt or the same one goes on from, and the one up to which blocks were found but no snapshot, where
// prompts are seen to part. Its answer has a place of its own, if not half of all are taken so, which is
// filled anew every `apart` positions and offered when the sequence gives its blocks back: the next prompt of
// a chat goes on from there. None is less than `apart` positions behind the one before: so few are not worth
// a state. A snapshot goes with its block, or when a newer one needs its place (recurrent/snapshot_slots.h).
//
// A block is written only by the one sequence that has it, and never while published: reserve() gives a
// sequence a copy of its own first (copy-on-write) and says what to copy. Every call is O(blocks it touches).
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/recurrent/snapshot_slots.h"

namespace llmq {

// Copy the contents of one page before anything is written.
struct BlockCopy {
  std::int32_t from, to;
};

// A page on the device and its place among the host's.
struct PageSwap {
  std::int32_t block, slot;
};

// Position p looks at those from p - positions + 1 on, or with `chunks` from the last multiple of `positions`
// on, and may touch those before them down to a multiple of `grain`.
struct KvWindow {
  std::int64_t positions = 0;  // 0: all
  std::int64_t grain = 1;
  bool chunks = false;
  bool looks_as(const KvWindow& other) const {
    return positions == other.positions && chunks == other.chunks;
  }
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
  // positions of the prefix that was found, and of a longer one that has no snapshot; 0: none
  std::int64_t found = 0, parts_at = 0;
};

inline constexpr std::int32_t kNoSnapshot = -1;

// A place that is taken for the state behind the first `position` tokens of a sequence.
struct SnapshotPlace {
  std::uint64_t sequence = 0;
  std::int64_t position = 0;
  std::int32_t slot = kNoSnapshot;
  bool of_answer = false;  // kept by the sequence until it gives its blocks back
};

// The most that a sequence has at once on its way to `positions`, if it is run at most `step` at a time and
// gives back what it passed: of one group, and of all of these.
std::int64_t most_kv_blocks(const KvWindow& window, int block_size, std::int64_t positions,
                            std::int64_t step);
std::int64_t most_kv_blocks(std::span<const KvWindow> groups, int block_size, std::int64_t positions,
                            std::int64_t step);

class KvBlocks {
 public:
  // `groups`: how far back each page group looks. One pool.
  KvBlocks(std::int32_t blocks, int block_size, bool prefix_caching = true,
           std::vector<KvWindow> groups = {KvWindow{}});
  // So many blocks in each pool; `pool_of`: of each group.
  KvBlocks(std::span<const std::int32_t> pools, int block_size, bool prefix_caching,
           std::vector<KvWindow> groups, std::vector<std::size_t> pool_of);

  // From here on a prefix is found only where it has one of `count` snapshots of a recurrent state.
  void keep_snapshots(std::int32_t count, std::int64_t apart) {
    snapshots_.emplace(count);
    apart_ = apart;
  }
  // Of the prefix that a table was just given, where it has one.
  std::int32_t snapshot_of(const KvTable& table);
  // Places for the snapshots that a sequence with a prompt of so many tokens leaves while it goes over
  // positions (first, end]. Each is offered once these are computed and published, or dropped.
  void take_places(const KvTable& table, std::uint64_t sequence, std::int64_t prompt, std::int64_t first,
                   std::int64_t end, std::vector<SnapshotPlace>& places);
  void offer(const KvTable& table, const SnapshotPlace& place);
  void drop(const SnapshotPlace& place);
  // The same for an answer that goes over (first, end]: the place that it had last, or another one.
  void take_place_of_answer(const KvTable& table, const SnapshotPlace& last, std::uint64_t sequence,
                            std::int64_t prompt, std::int64_t first, std::int64_t end,
                            std::vector<SnapshotPlace>& places);
  std::int32_t places_of_answers() const { return of_answers_; }
  const std::optional<SnapshotSlots>& snapshots() const { return snapshots_; }

  // An empty table; sequences share prefixes only with the same salt, and only where they share any.
  KvTable open(std::string_view salt = {}, bool shares = true) const;
  // Puts published blocks with the first of `tokens` into an empty table, never all of the tokens: the last
  // one is always left to compute. Returns the positions that were found.
  std::int64_t take_prefix(KvTable& table, std::span<const std::int32_t> tokens);
  // Room for `length` positions in blocks that the sequence may write from its present length on, in every
  // group; or false and no change.
  bool reserve(KvTable& table, std::int64_t length, std::vector<BlockCopy>& copies);
  // The same for positions whose pages come from elsewhere, in blocks that positions from `length` on look
  // at: false, and no change, where these are too few.
  bool reserve_seen(KvTable& table, std::int64_t length);
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
  std::int32_t free() const;  // published or not
  std::size_t pools() const { return pools_.size(); }
  std::int32_t begin_of(std::size_t pool) const { return pools_[pool].begin; }  // its first block
  std::int32_t count_of(std::size_t pool) const { return pools_[pool].count; }
  std::size_t pool_of(std::size_t group) const { return pool_of_[group]; }
  std::size_t pool_of_block(std::int32_t block) const;
  int block_size() const { return block_size_; }
  std::size_t groups() const { return windows_.size(); }
  // Whether pages are given back while their sequence goes on.
  bool has_windows() const;
  // Room for so many in sequences that keep all of their pages, in the pool that has most.
  std::int64_t positions() const;
  std::int32_t references(std::int32_t block) const { return at(block).references; }
  bool is_published(std::int32_t block) const { return at(block).key.has_value(); }
  std::int64_t blocks_for(std::int64_t positions) const {
    return (positions + block_size_ - 1) / block_size_;
  }
  // most_kv_blocks() of these groups, and how many of them a table lacks.
  std::int64_t most_blocks(std::int64_t positions, std::int64_t step) const {
    return most_kv_blocks(windows_, block_size_, positions, step);
  }
  std::int64_t missing_blocks(const KvTable& table, std::int64_t positions, std::int64_t step,
                              std::size_t pool = 0) const;
  // Whether a sequence of so many positions fits where nobody else is, and where so much is free.
  bool holds(std::int64_t positions, std::int64_t step) const;
  bool has_room(const KvTable& table, std::int64_t positions, std::int64_t step) const;

 private:
  // Free blocks of a pool are a list in the order in which they are taken.
  struct Pool {
    std::int32_t begin = 0, count = 0, free = 0, first = -1, last = -1;
    std::int32_t groups = 0;
  };
  struct Block {
    std::int32_t references = 0, before = 0, after = 0;
    std::optional<BlockKey> key;
    std::size_t group = 0;  // that it is published for
  };

  Block& at(std::int32_t block) { return blocks_[static_cast<std::size_t>(block)]; }
  const Block& at(std::int32_t block) const { return blocks_[static_cast<std::size_t>(block)]; }
  void link(std::int32_t block, std::int32_t before, std::int32_t after);
  void unlink(std::int32_t block);
  std::int32_t take(std::size_t group);
  template <class Wanted>
  bool has_free(const KvTable& table, const Wanted& wanted) const;
  void retain(std::int32_t block);
  void release(std::int32_t block);
  void withdraw(std::int32_t block);
  void offer(std::int32_t block, std::size_t group, const BlockKey& key);
  std::size_t passed(std::size_t group, std::int64_t length) const;

  int block_size_;
  bool prefix_caching_;
  std::vector<KvWindow> windows_;     // by group
  std::vector<std::size_t> pool_of_;  // by group
  std::vector<Pool> pools_;
  std::vector<Block> blocks_;
  std::vector<std::map<BlockKey, std::int32_t>> published_;  // by group
  std::optional<SnapshotSlots> snapshots_;
  std::int64_t apart_ = 1;
  std::int32_t of_answers_ = 0;
};

}  // namespace llmq

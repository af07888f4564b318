// Blocks of the KV cache: shared prefixes, copies before writes, what is forgotten first; and random use
// against a model that knows what every position of every block holds.
#include "runtime/kv_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "scheduler_machine.h"

namespace llmq {
namespace {

std::vector<std::int32_t> counting(std::int32_t first, int count) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) tokens[static_cast<std::size_t>(i)] = first + i;
  return tokens;
}

// Of a model of one page group.
const PageTable& own(const KvTable& table) { return table.groups.front(); }

KvTable filled(KvBlocks& blocks, const std::vector<std::int32_t>& tokens, std::string_view salt = {}) {
  KvTable table = blocks.open(salt);
  std::vector<BlockCopy> copies;
  blocks.take_prefix(table, tokens);
  EXPECT_TRUE(blocks.reserve(table, static_cast<std::int64_t>(tokens.size()), copies));
  EXPECT_TRUE(copies.empty());
  blocks.publish(table, tokens);
  return table;
}

TEST(KvBlocks, APrefixIsSharedAndTheLastTokenIsLeftToCompute) {
  KvBlocks blocks(8, 4);
  const KvTable first = filled(blocks, counting(0, 8));
  KvTable second = blocks.open();
  EXPECT_EQ(blocks.take_prefix(second, counting(0, 8)), 4);  // not 8: something must be computed
  EXPECT_EQ(own(second).blocks[0], own(first).blocks[0]);
  EXPECT_EQ(blocks.references(own(first).blocks[0]), 2);
  KvTable longer = blocks.open();
  EXPECT_EQ(blocks.take_prefix(longer, counting(0, 9)), 8);
  KvTable other = blocks.open();
  std::vector<std::int32_t> late = counting(0, 12);
  late[1] = 99;  // the second block is the same, what stands before it is not
  EXPECT_EQ(blocks.take_prefix(other, late), 0);
  filled(blocks, std::vector<std::int32_t>{50, 51, 52, 53});
  KvTable mixed = blocks.open();
  EXPECT_EQ(blocks.take_prefix(mixed, std::vector<std::int32_t>{50, 51, 52, 53, 4, 5, 6, 7, 8}), 4);
}

TEST(KvBlocks, TenantsDoNotShare) {
  KvBlocks blocks(8, 4);
  const KvTable first = filled(blocks, counting(0, 8), "tenant a");
  KvTable second = blocks.open("tenant b");
  EXPECT_EQ(blocks.take_prefix(second, counting(0, 9)), 0);
  KvTable third = blocks.open("tenant a");
  EXPECT_EQ(blocks.take_prefix(third, counting(0, 9)), 8);
}

TEST(KvBlocks, ReservingIsAllOrNothing) {
  KvBlocks blocks(3, 4);
  KvTable table = blocks.open();
  std::vector<BlockCopy> copies;
  EXPECT_TRUE(blocks.reserve(table, 5, copies));
  EXPECT_FALSE(blocks.reserve(table, 13, copies));
  EXPECT_EQ(table.length, 5);
  EXPECT_EQ(blocks.free(), 1);
  EXPECT_TRUE(blocks.reserve(table, 12, copies));
  blocks.close(table);
  EXPECT_EQ(blocks.free(), 3);
}

TEST(KvBlocks, SamplesWriteIntoCopies) {
  KvBlocks blocks(4, 4);
  KvTable first = filled(blocks, counting(0, 6));
  KvTable second = blocks.fork(first);
  std::vector<BlockCopy> copies;
  ASSERT_TRUE(blocks.reserve(second, 7, copies));
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].from, own(first).blocks[1]);
  EXPECT_EQ(copies[0].to, own(second).blocks[1]);
  EXPECT_EQ(own(second).blocks[0], own(first).blocks[0]);
  ASSERT_TRUE(blocks.reserve(first, 7, copies));  // alone again: no copy
  EXPECT_EQ(copies.size(), 1u);
}

TEST(KvBlocks, EmptyBlocksGoFirstThenTheLeastRecentlyUsedEndFirst) {
  KvBlocks blocks(5, 4);
  KvTable old = filled(blocks, counting(0, 8)), recent = filled(blocks, counting(100, 8));
  const std::vector<std::int32_t> expected = {4, own(old).blocks[1], own(old).blocks[0],
                                              own(recent).blocks[1], own(recent).blocks[0]};
  blocks.close(old);
  blocks.close(recent);
  std::vector<BlockCopy> copies;
  KvTable all = blocks.open("other");
  ASSERT_TRUE(blocks.reserve(all, 20, copies));
  EXPECT_EQ(own(all).blocks, expected);
  KvTable again = blocks.open();
  EXPECT_EQ(blocks.take_prefix(again, counting(0, 9)), 0);  // forgotten
}

// Of 12 positions in blocks of 4 the next looks at 6, which are in blocks 1 and 2 of its second group.
TEST(KvBlocks, APoolHasBlocksOfItsOwn) {
  const std::int32_t counts[] = {6, 3};
  KvBlocks blocks(counts, 4, true, {KvWindow{}, {6, 1}}, {0, 1});
  EXPECT_EQ(blocks.total(), 9);
  EXPECT_EQ(blocks.positions(), 24);
  EXPECT_TRUE(blocks.holds(24, 1));
  EXPECT_FALSE(blocks.holds(25, 1)) << "a block of the first pool is missing";
  EXPECT_FALSE(blocks.holds(24, 5)) << "one of the second is";
  KvTable table = blocks.open();
  std::vector<BlockCopy> copies;
  ASSERT_TRUE(blocks.reserve(table, 12, copies));
  for (const std::int32_t block : table.groups[0].blocks) EXPECT_EQ(blocks.pool_of_block(block), 0u);
  for (const std::int32_t block : table.groups[1].blocks) EXPECT_EQ(blocks.pool_of_block(block), 1u);
  EXPECT_EQ(blocks.free(), 3);
  EXPECT_FALSE(blocks.reserve(table, 13, copies)) << "the three that are free are the first pool's";
  EXPECT_FALSE(blocks.has_room(table, 25, 1));
  blocks.release_passed(table);
  EXPECT_TRUE(blocks.has_room(table, 13, 1));
  EXPECT_TRUE(blocks.reserve(table, 13, copies));
  blocks.close(table);
  EXPECT_EQ(blocks.free(), 9);
  // What comes from the host takes what positions behind it look at alone.
  ASSERT_TRUE(blocks.reserve_seen(table, 22));
  EXPECT_EQ(blocks.free(), 9 - 6 - 2);
  EXPECT_EQ(table.groups[1].passed, 4u);
  KvTable other = blocks.open();
  EXPECT_FALSE(blocks.reserve_seen(other, 1));
  EXPECT_EQ(other.length, 0);
  blocks.close(table);
  EXPECT_EQ(blocks.free(), 9);
}

// Fills what is not found of a prompt, and leaves the snapshots that it should; where they are.
std::vector<std::int64_t> leave_snapshots(KvBlocks& blocks, const std::vector<std::int32_t>& tokens) {
  KvTable table = blocks.open();
  std::vector<BlockCopy> copies;
  std::vector<SnapshotPlace> places;
  const auto size = static_cast<std::int64_t>(tokens.size());
  const std::int64_t found = blocks.take_prefix(table, tokens);
  EXPECT_TRUE(blocks.reserve(table, size, copies));
  blocks.take_places(table, 1, size, found, size, places);
  blocks.publish(table, tokens);
  std::vector<std::int64_t> positions;
  for (const SnapshotPlace& place : places) {
    blocks.offer(table, place);
    positions.push_back(place.position);
  }
  blocks.close(table);
  return positions;
}

std::int64_t found_of(KvBlocks& blocks, const std::vector<std::int32_t>& tokens) {
  KvTable table = blocks.open();
  const std::int64_t found = blocks.take_prefix(table, tokens);
  EXPECT_EQ(blocks.snapshot_of(table) == kNoSnapshot, found == 0);
  blocks.close(table);
  return found;
}

using Positions = std::vector<std::int64_t>;

TEST(KvBlocks, APrefixEndsAtASnapshot) {
  KvBlocks blocks(16, 4);
  blocks.keep_snapshots(3, 8);
  std::vector<std::int32_t> first = counting(0, 21), parted = first;
  parted[18] = 99;
  EXPECT_EQ(leave_snapshots(blocks, first), (Positions{20}));
  EXPECT_EQ(found_of(blocks, counting(0, 30)), 20);
  EXPECT_EQ(found_of(blocks, counting(0, 20)), 0) << "pages of 16 positions are there, and no state of 16";
  EXPECT_EQ(leave_snapshots(blocks, parted), (Positions{16})) << "20 is less than 8 behind 16";
  EXPECT_EQ(found_of(blocks, parted), 16);
  EXPECT_EQ(leave_snapshots(blocks, counting(0, 27)), Positions{}) << "24 is less than 8 behind 20";
  EXPECT_EQ(leave_snapshots(blocks, counting(0, 33)), (Positions{32}));
  EXPECT_EQ(blocks.snapshots()->offered(), 3);
  // The one that was found longest ago goes.
  EXPECT_EQ(found_of(blocks, counting(0, 21)), 20);
  EXPECT_EQ(found_of(blocks, counting(0, 33)), 32);
  EXPECT_EQ(leave_snapshots(blocks, counting(100, 9)), (Positions{8}));
  EXPECT_EQ(found_of(blocks, parted), 0);
  EXPECT_EQ(found_of(blocks, counting(0, 33)), 32);
  EXPECT_EQ(found_of(blocks, counting(0, 32)), 20);
}

TEST(KvBlocks, ASnapshotGoesWithItsBlock) {
  KvBlocks blocks(5, 4);
  blocks.keep_snapshots(4, 1);
  EXPECT_EQ(leave_snapshots(blocks, counting(0, 9)), (Positions{8}));
  EXPECT_EQ(blocks.snapshots()->offered(), 1);
  EXPECT_EQ(leave_snapshots(blocks, counting(100, 17)), (Positions{16}));  // takes all blocks
  EXPECT_EQ(blocks.snapshots()->offered(), 1);
  EXPECT_EQ(found_of(blocks, counting(0, 9)), 0);
  EXPECT_EQ(found_of(blocks, counting(100, 17)), 16);
}

// Of 20 positions in blocks of 4, the next looks at 6 (15 ... 20), which are in blocks 3, 4 and 5.
TEST(KvBlocks, WhatAWindowHasPassedIsGivenBackAndAPrefixNeedsItsEndOnly) {
  KvBlocks blocks(8, 4, true, {{6, 1}});
  KvTable table = filled(blocks, counting(0, 20));
  EXPECT_EQ(blocks.free(), 3);
  blocks.release_passed(table);
  EXPECT_EQ(blocks.free(), 6);
  EXPECT_EQ(std::vector(own(table).blocks.begin(), own(table).blocks.begin() + 3),
            std::vector<std::int32_t>(3, kNoBlock));
  // 13 tokens, of which 12 may be found: the next looks at 7 ... 12, so blocks 1 and 2 are taken from the
  // free list.
  KvTable shorter = blocks.open();
  EXPECT_EQ(blocks.take_prefix(shorter, counting(0, 13)), 12);
  EXPECT_EQ(own(shorter).blocks[0], kNoBlock);
  EXPECT_EQ(own(shorter).passed, 1u);
  EXPECT_EQ(blocks.free(), 4);
  KvTable forked = blocks.fork(shorter);
  EXPECT_EQ(blocks.references(own(shorter).blocks[1]), 2);
  EXPECT_THROW(blocks.truncate(forked, 8), Error) << "position 8 looks at 3, which is gone";
  blocks.close(forked);
  blocks.close(shorter);
  // The first three blocks are needed for something else; the end is found all the same, and what ends before
  // it is not.
  std::vector<BlockCopy> copies;
  KvTable other = blocks.open("other");
  ASSERT_TRUE(blocks.reserve(other, 24, copies));
  KvTable longer = blocks.open();
  EXPECT_EQ(blocks.take_prefix(longer, counting(0, 21)), 20);
  EXPECT_EQ(std::vector(own(longer).blocks.begin() + 3, own(longer).blocks.end()),
            std::vector(own(table).blocks.begin() + 3, own(table).blocks.end()));
  KvTable lost = blocks.open();
  EXPECT_EQ(blocks.take_prefix(lost, counting(0, 13)), 0);
  for (KvTable* one : {&table, &other, &longer}) blocks.close(*one);
  EXPECT_EQ(blocks.free(), 8);
}

// Chunks of 6 begin at 12 and 18: of 20 positions in blocks of 4 the next sees 18 ... 20, from block 4 on.
TEST(KvBlocks, WhatLiesBeforeAChunkIsGivenBackAndAPrefixNeedsItsChunkOnly) {
  KvBlocks blocks(8, 4, true, {KvWindow{6, 1, true}});
  // Where all layers see chunks alone, nothing behind 12 looks before it: those 12 are found though nobody
  // computed them, and two blocks are taken.
  KvTable table = filled(blocks, counting(0, 20));
  EXPECT_EQ(blocks.free(), 6);
  blocks.release_passed(table);
  EXPECT_EQ(blocks.free(), 7);
  EXPECT_EQ(own(table).passed, 4u);
  // 12 positions of 13 end where a chunk begins: nothing of them is looked at, and nothing is taken.
  KvTable shorter = blocks.open();
  EXPECT_EQ(blocks.take_prefix(shorter, counting(0, 13)), 12);
  EXPECT_EQ(own(shorter).passed, 3u);
  EXPECT_EQ(blocks.free(), 7);
  std::vector<BlockCopy> copies;
  ASSERT_TRUE(blocks.reserve(shorter, 14, copies));
  EXPECT_TRUE(copies.empty());
  blocks.truncate(shorter, 13);  // 13 and all up to 17 look at 12
  EXPECT_THROW(blocks.truncate(shorter, 11), Error) << "position 11 looks at 6, which is not there";
  KvTable forked = blocks.fork(table);
  blocks.truncate(forked, 18);
  EXPECT_THROW(blocks.truncate(forked, 17), Error) << "position 17 looks at 12, which is gone";
  blocks.close(forked);
  for (KvTable* one : {&table, &shorter}) blocks.close(*one);
  EXPECT_EQ(blocks.free(), 8);
  EXPECT_EQ(most_kv_blocks(KvWindow{6, 1, true}, 4, 100, 3), 3);
}

// Blocks of 4: at most those of 6 - 1 positions before a step of 3, and a rounding down each to a grain of 2
// and to a block.
TEST(KvBlocks, KnowsTheMostThatASequenceHolds) {
  const KvWindow all, window{6, 2};
  EXPECT_EQ(most_kv_blocks(all, 4, 100, 3), 25);
  EXPECT_EQ(most_kv_blocks(window, 4, 9, 3), 3);
  EXPECT_EQ(most_kv_blocks(window, 4, 100, 3), 3);
  EXPECT_EQ(most_kv_blocks(window, 4, 100, 4), 4);
  const KvWindow groups[] = {all, window, window};
  EXPECT_EQ(most_kv_blocks(groups, 4, 100, 4), 25 + 4 + 4);
}

// Two groups, of which one looks back 6 positions: 20 positions in blocks of 4 take five blocks of each, of
// which the second needs those of 15 ... 20.
TEST(KvBlocks, EveryGroupGivesBackWhatItsOwnWindowHasPassed) {
  KvBlocks blocks(12, 4, true, {KvWindow{}, {6, 1}});
  EXPECT_TRUE(blocks.has_windows());
  EXPECT_EQ(blocks.positions(), 24);
  KvTable table = filled(blocks, counting(0, 20));
  EXPECT_EQ(blocks.free(), 2);
  blocks.release_passed(table);
  EXPECT_EQ(blocks.free(), 5);
  EXPECT_EQ(table.groups[0].passed, 0u);
  EXPECT_EQ(std::count(table.groups[0].blocks.begin(), table.groups[0].blocks.end(), kNoBlock), 0);
  EXPECT_EQ(table.groups[1].passed, 3u);
  EXPECT_EQ(std::count(table.groups[1].blocks.begin(), table.groups[1].blocks.end(), kNoBlock), 3);
  // On the way to 48 positions, 4 at a time: 12 blocks of the first group, and those of 6 - 1 + 3 + 4
  // positions of the second.
  EXPECT_EQ(blocks.missing_blocks(table, 48, 4), 12 - 5 + 3 - 2);
  EXPECT_EQ(blocks.missing_blocks(blocks.open(), 48, 4), 12 + 3);
  KvTable forked = blocks.fork(table);
  EXPECT_EQ(blocks.references(table.groups[0].blocks[0]), 2);
  EXPECT_EQ(blocks.references(table.groups[1].blocks[4]), 2);
  EXPECT_THROW(blocks.truncate(forked, 8), Error)
      << "position 8 of the second group looks at 3, which is gone";
  std::vector<BlockCopy> copies;
  blocks.truncate(forked, 18);
  ASSERT_TRUE(blocks.reserve(forked, 19, copies));
  EXPECT_EQ(copies.size(), 2u) << "the last block of each group is written";
  blocks.close(forked);
  EXPECT_FALSE(blocks.reserve(table, 33, copies)) << "eight blocks, of which five are free";
  EXPECT_EQ(table.length, 20);
  blocks.close(table);
  EXPECT_EQ(blocks.free(), 12);
}

// A prefix is there where the first group has all of it and the second one its end.
TEST(KvBlocks, APrefixIsFoundWhereEveryGroupHasWhatItLooksAt) {
  KvBlocks blocks(10, 4, true, {KvWindow{}, {6, 1}});
  KvTable table = filled(blocks, counting(0, 20));
  const std::vector<std::int32_t> first = table.groups[0].blocks, second = table.groups[1].blocks;
  blocks.release_passed(table);
  blocks.close(table);
  KvTable found = blocks.open();
  EXPECT_EQ(blocks.take_prefix(found, counting(0, 21)), 20);
  EXPECT_EQ(found.groups[0].blocks, first);
  EXPECT_EQ(std::vector(found.groups[1].blocks.begin() + 3, found.groups[1].blocks.end()),
            std::vector(second.begin() + 3, second.end()));
  EXPECT_EQ(found.groups[1].passed, 3u);
  // Another sequence takes two of the blocks that the window had passed. What the first group has of 12
  // positions is there still, and is not found: the second one would look at 7 ... 11.
  std::vector<BlockCopy> copies;
  KvTable other = blocks.open("other");
  ASSERT_TRUE(blocks.reserve(other, 4, copies));
  for (const PageTable& taken : other.groups)
    EXPECT_EQ(std::count(second.begin(), second.begin() + 3, taken.blocks.front()), 1);
  KvTable shorter = blocks.open();
  EXPECT_EQ(blocks.take_prefix(shorter, counting(0, 13)), 0);
  for (KvTable* one : {&found, &other, &shorter}) blocks.close(*one);
  EXPECT_EQ(blocks.free(), 10);
}

TEST(KvBlocks, WhatIsNotThereIsRefused) {
  EXPECT_THROW(KvBlocks(0, 16), Error);
  EXPECT_THROW(KvBlocks(1, 0), Error);
  KvBlocks blocks(2, 4);
  KvTable table = blocks.open();
  EXPECT_THROW(blocks.truncate(table, 1), Error);
}

// One sequence of the random test: what it believes its positions hold.
struct Believed {
  KvTable table;
  std::vector<std::int32_t> tokens;
  std::int32_t tenant = 1;
};

class RandomUse {
 public:
  RandomUse(unsigned seed, int count, int size)
      : random_(seed),
        blocks_(count, size),
        size_(size),
        pages_(static_cast<std::size_t>(count * size), -1) {}

  void step() {
    const int kind = pick(10);
    if (sequences_.empty() || kind < 2) return open();
    Believed& one = sequences_[static_cast<std::size_t>(pick(static_cast<int>(sequences_.size())))];
    if (kind < 6) return grow(one);
    if (kind < 7) return cut(one);
    if (kind < 8 && sequences_.size() < 12) {
      sequences_.push_back({blocks_.fork(one.table), one.tokens, one.tenant});
      return;
    }
    blocks_.close(one.table);
    std::swap(one, sequences_.back());
    sequences_.pop_back();
  }

  // Every block has as many references as tables name it, free ones none; every position holds what its
  // sequence wrote.
  void check() {
    std::vector<std::int32_t> named(static_cast<std::size_t>(blocks_.total()));
    for (const Believed& one : sequences_) {
      ASSERT_EQ(one.table.length, static_cast<std::int64_t>(one.tokens.size()));
      ASSERT_EQ(static_cast<std::int64_t>(own(one.table).blocks.size()),
                blocks_.blocks_for(one.table.length));
      for (const std::int32_t block : own(one.table).blocks) ++named[static_cast<std::size_t>(block)];
      std::int32_t expected = one.tenant;
      for (std::size_t i = 0; i < one.tokens.size(); ++i) {
        expected = testing::contents(expected, one.tokens[i]);
        ASSERT_EQ(page(one.table, i), expected) << "position " << i;
      }
    }
    std::int32_t free = 0;
    for (std::int32_t block = 0; block < blocks_.total(); ++block) {
      ASSERT_EQ(blocks_.references(block), named[static_cast<std::size_t>(block)]);
      free += blocks_.references(block) == 0;
    }
    ASSERT_EQ(blocks_.free(), free);
  }
  std::int64_t found() const { return found_; }
  std::int64_t copied() const { return copied_; }

 private:
  int pick(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  std::int32_t& page(const KvTable& table, std::size_t i) {
    const auto size = static_cast<std::size_t>(size_);
    return pages_[static_cast<std::size_t>(own(table).blocks[i / size]) * size + i % size];
  }

  void open() {
    if (sequences_.size() >= 12) return;
    const bool other = pick(4) == 0;
    Believed one{blocks_.open(other ? "other" : ""), {}, other ? 2 : 1};
    for (int i = pick(14); i >= 0; --i) one.tokens.push_back(pick(8) == 0 ? 1 : 0);
    const std::int64_t found = blocks_.take_prefix(one.table, one.tokens);
    found_ += found;
    if (!write(one, static_cast<std::size_t>(found))) return blocks_.close(one.table);
    sequences_.push_back(std::move(one));
  }

  // Room for the tokens, and the tokens from `first` on in it.
  bool write(Believed& one, std::size_t first) {
    std::vector<BlockCopy> copies;
    if (!blocks_.reserve(one.table, static_cast<std::int64_t>(one.tokens.size()), copies)) return false;
    for (const BlockCopy& copy : copies) {
      ++copied_;
      for (int i = 0; i < size_; ++i)
        pages_[static_cast<std::size_t>(copy.to * size_ + i)] =
            pages_[static_cast<std::size_t>(copy.from * size_ + i)];
    }
    for (std::size_t i = first; i < one.tokens.size(); ++i) {
      const std::int32_t block = own(one.table).blocks[i / static_cast<std::size_t>(size_)];
      EXPECT_EQ(blocks_.references(block), 1);
      EXPECT_FALSE(blocks_.is_published(block));
      page(one.table, i) = testing::contents(i == 0 ? one.tenant : page(one.table, i - 1), one.tokens[i]);
    }
    blocks_.publish(one.table, one.tokens);
    return true;
  }

  void grow(Believed& one) {
    const std::size_t first = one.tokens.size();
    for (int i = pick(5); i >= 0; --i) one.tokens.push_back(pick(3) == 0 ? 1 : 0);
    if (!write(one, first)) one.tokens.resize(first);
  }

  void cut(Believed& one) {
    one.tokens.resize(static_cast<std::size_t>(pick(static_cast<int>(one.tokens.size()) + 1)));
    blocks_.truncate(one.table, static_cast<std::int64_t>(one.tokens.size()));
  }

  std::mt19937 random_;
  KvBlocks blocks_;
  int size_;
  std::vector<std::int32_t> pages_;  // what each position holds
  std::vector<Believed> sequences_;
  std::int64_t found_ = 0, copied_ = 0;
};

TEST(KvBlocks, RandomUseKeepsEveryPosition) {
  std::int64_t found = 0, copied = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    RandomUse use(seed, 8 + static_cast<int>(seed), 1 + static_cast<int>(seed % 4));
    for (int i = 0; i < 5000; ++i) {
      use.step();
      use.check();
      if (::testing::Test::HasFailure()) FAIL() << "seed " << seed << ", step " << i;
    }
    found += use.found();
    copied += use.copied();
  }
  EXPECT_GT(found, 10000);
  EXPECT_GT(copied, 100);
}

}  // namespace
}  // namespace llmq

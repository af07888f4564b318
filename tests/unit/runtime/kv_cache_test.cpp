#include "runtime/kv_cache.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace llmq::testing {
namespace {

KvCache make_cache(Backend& backend, std::int64_t tokens, int block_size) {
  ModelSpec spec;
  spec.kv_heads = 2;
  spec.head_dim = 8;
  spec.blocks.resize(3);
  return KvCache(spec, backend, DType::kBF16, tokens, block_size);
}

std::vector<std::int64_t> slots_of(KvCache& cache, std::uint64_t sequence, std::int64_t count) {
  std::vector<std::int64_t> slots;
  cache.append(sequence, count, slots);
  return slots;
}

TEST(KvCache, SlotsFollowTheTable) {
  const auto backend = make_reference_backend();
  KvCache cache = make_cache(*backend, 10, 4);
  EXPECT_EQ(cache.free_blocks(), 3);  // 10 positions take 3 blocks of 4
  EXPECT_EQ(cache.bytes(), 3u * 2u * 12u * 2u * 8u * 2u);
  const std::uint64_t a = cache.open_sequence(), b = cache.open_sequence();
  EXPECT_EQ(slots_of(cache, a, 3), (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(slots_of(cache, b, 1), (std::vector<std::int64_t>{4}));
  EXPECT_EQ(slots_of(cache, a, 3), (std::vector<std::int64_t>{3, 8, 9}));
  EXPECT_EQ(cache.length(a), 6);
  EXPECT_EQ(cache.block_table(a).size(), 2u);
  EXPECT_EQ(cache.pages(2).block_size, 4);
}

TEST(KvCache, FullIsAnErrorThatChangesNothing) {
  const auto backend = make_reference_backend();
  KvCache cache = make_cache(*backend, 8, 4);
  const std::uint64_t a = cache.open_sequence();
  slots_of(cache, a, 5);
  try {
    slots_of(cache, a, 4);
    ADD_FAILURE() << "9 positions fitted in 8";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
  }
  EXPECT_EQ(cache.length(a), 5);
  EXPECT_EQ(slots_of(cache, a, 3).size(), 3u);
}

TEST(KvCache, TruncateAndCloseGiveBlocksBack) {
  const auto backend = make_reference_backend();
  KvCache cache = make_cache(*backend, 16, 4);
  const std::uint64_t a = cache.open_sequence();
  slots_of(cache, a, 13);
  EXPECT_EQ(cache.free_blocks(), 0);
  cache.truncate(a, 5);
  EXPECT_EQ(cache.free_blocks(), 2);
  cache.truncate(a, 4);
  EXPECT_EQ(cache.free_blocks(), 3);
  EXPECT_EQ(slots_of(cache, a, 1), (std::vector<std::int64_t>{4}));
  EXPECT_THROW(cache.truncate(a, 6), Error);
  cache.close_sequence(a);
  EXPECT_EQ(cache.free_blocks(), 4);
}

TEST(KvCache, NothingToHoldIsRefused) {
  const auto backend = make_reference_backend();
  EXPECT_THROW(make_cache(*backend, 0, 4), Error);
  EXPECT_THROW(make_cache(*backend, 4, 0), Error);
}

}  // namespace
}  // namespace llmq::testing

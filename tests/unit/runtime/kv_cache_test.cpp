#include "runtime/kv_cache.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace llmq::testing {
namespace {

KvCache make_cache(Backend& backend, std::int64_t tokens, int block_size) {
  ModelSpec spec;
  spec.blocks.resize(3);
  for (BlockSpec& block : spec.blocks) block.pages = {2, 8, 0};
  return KvCache(spec, backend, {DType::kBF16}, tokens, block_size);
}

TEST(KvCache, HasPagesForEveryLayer) {
  const auto backend = make_reference_backend();
  KvCache cache = make_cache(*backend, 10, 4);
  EXPECT_EQ(cache.blocks().free(), 3);  // 10 positions take 3 blocks of 4
  EXPECT_EQ(cache.bytes(), 3u * 2u * 12u * 2u * 8u * 2u);
  EXPECT_EQ(cache.pages(2).block_size, 4);
}

// Pages whose bytes name layer, kind and block; also where memory is closed to the host.
TEST(KvCache, CopiesGoToEveryLayerInTheirOrder) {
  for (const auto& backend : {make_reference_backend(), make_fake_backend()}) {
    KvCache cache = make_cache(*backend, 16, 4);
    const std::size_t page = 4 * 2 * 8 * 2;
    std::vector<std::uint8_t> bytes(4 * page);
    for (int layer = 0; layer < 3; ++layer)
      for (const bool keys : {true, false}) {
        for (std::size_t i = 0; i < bytes.size(); ++i)
          bytes[i] = static_cast<std::uint8_t>(layer * 8 + (keys ? 4 : 0) + static_cast<int>(i / page));
        backend->upload(keys ? cache.pages(layer).keys : cache.pages(layer).values, bytes.data());
      }
    cache.copy(std::vector<BlockCopy>{{0, 2}, {2, 3}});
    for (int layer = 0; layer < 3; ++layer)
      for (const bool keys : {true, false}) {
        backend->download(bytes.data(), keys ? cache.pages(layer).keys : cache.pages(layer).values);
        const int block_of[] = {0, 1, 0, 0};
        for (std::size_t i = 0; i < bytes.size(); ++i)
          ASSERT_EQ(bytes[i], layer * 8 + (keys ? 4 : 0) + block_of[i / page]) << layer << " " << i;
      }
  }
}

TEST(KvSequence, FullIsAnErrorThatChangesNothing) {
  const auto backend = make_reference_backend();
  KvCache cache = make_cache(*backend, 8, 4);
  {
    KvSequence a(cache);
    a.extend(5);
    try {
      a.extend(4);
      ADD_FAILURE() << "9 positions fitted in 8";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kResource);
    }
    EXPECT_EQ(a.length(), 5);
    a.truncate(4);
    EXPECT_EQ(cache.blocks().free(), 1);
    a.extend(4);
    EXPECT_EQ(a.blocks().size(), 2u);
  }
  EXPECT_EQ(cache.blocks().free(), 2);
}

TEST(KvCache, NothingToHoldIsRefused) {
  const auto backend = make_reference_backend();
  EXPECT_THROW(make_cache(*backend, 0, 4), Error);
  EXPECT_THROW(make_cache(*backend, 4, 0), Error);
}

}  // namespace
}  // namespace llmq::testing

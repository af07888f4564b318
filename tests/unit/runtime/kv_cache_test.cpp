#include "runtime/kv_cache.h"

#include <gtest/gtest.h>

#include <utility>

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

// Layers 1, 2, 4 and 5 look back 100 positions.
ModelSpec six_layers() {
  ModelSpec spec;
  spec.blocks.resize(6);
  for (std::size_t i = 0; i < 6; ++i) spec.blocks[i].pages = {2, 8, i % 3 == 0 ? 0 : 100};
  return spec;
}

std::vector<std::int64_t> windows_of_groups(const PageGroups& groups) {
  std::vector<std::int64_t> windows;
  for (const KvWindow& window : groups.windows) windows.push_back(window.positions);
  return windows;
}

TEST(PageGroups, AreLayersOfOneWindowAndAsManyInEach) {
  const ModelSpec spec = six_layers();
  const PageGroups groups = page_groups(spec, true);
  EXPECT_EQ(groups.layers, std::vector<std::size_t>{2});
  EXPECT_EQ(windows_of_groups(groups), (std::vector<std::int64_t>{0, 100, 100}));
  const std::pair<std::size_t, std::size_t> places[] = {{0, 0}, {1, 0}, {1, 1}, {0, 1}, {2, 0}, {2, 1}};
  for (std::size_t i = 0; i < 6; ++i)
    EXPECT_EQ(std::pair(groups.places[i].group, groups.places[i].layer), places[i]) << i;
  EXPECT_EQ(groups.windows[1].grain, kAttentionTile);
  // 1,000 positions of 16, a token at a time: 63 blocks, and twice the 12 that the window, a tile and block
  // ends touch: 87 pages, which are 29 blocks of all layers.
  EXPECT_EQ(kv_positions(groups, 16, 1000, 1), 29 * 16);
}

TEST(PageGroups, AreOneWhereOnePoolCannotServeSeveral) {
  ModelSpec spec = six_layers();
  EXPECT_EQ(windows_of_groups(page_groups(spec, false)), std::vector<std::int64_t>{0}) << "on two devices";
  spec.blocks[4].pages = {};
  EXPECT_EQ(windows_of_groups(page_groups(spec, true)), std::vector<std::int64_t>{0}) << "one has no pages";
  spec = six_layers();
  for (BlockSpec& block : spec.blocks) block.pages.window = 50;
  EXPECT_EQ(windows_of_groups(page_groups(spec, true)), std::vector<std::int64_t>{50});
  EXPECT_EQ(page_groups(spec, true).layers, std::vector<std::size_t>{6});
  spec.blocks[2].pages.window = 70;
  EXPECT_EQ(windows_of_groups(page_groups(spec, false)), std::vector<std::int64_t>{70})
      << "the widest of all";
  EXPECT_EQ(page_groups(spec, true).windows.size(), 6u) << "five and one have no common divisor";
}

// Full layers have wider heads, as Gemma 4's: a pool of two layers, and one of four.
TEST(PageGroups, PagesOfTwoSizesHavePoolsOfTheirOwn) {
  ModelSpec spec = six_layers();
  for (const std::size_t layer : {0, 3}) spec.blocks[layer].pages.head_dim = 32;
  const PageGroups groups = page_groups(spec, true);
  EXPECT_EQ(windows_of_groups(groups), (std::vector<std::int64_t>{0, 100}));
  EXPECT_EQ(groups.layers, (std::vector<std::size_t>{2, 4}));
  EXPECT_EQ(groups.pool_of, (std::vector<std::size_t>{0, 1}));
  EXPECT_FALSE(groups.passes(0));
  EXPECT_TRUE(groups.passes(1));
  EXPECT_EQ(kv_positions(groups, 16, 1000, 1), 63 * 16) << "those of the full layers";
  // The window, a tile and block ends touch 12 blocks; so for three sequences, and three blocks for a step.
  EXPECT_EQ(kv_window_positions(groups, 16, 3, 40), (3 * 12 + 3) * 16);
  EXPECT_EQ(kv_window_bytes(groups, spec, {DType::kBF16}), 4u * 2 * 2 * 8 * 2);
  EXPECT_EQ(kv_window_positions(page_groups(six_layers(), true), 16, 3, 40), 0) << "one pool is all groups'";
  const auto backend = make_reference_backend();
  const KvCache cache(spec, std::vector<Backend*>(6, backend.get()), {DType::kBF16}, 160, 16, true, 64);
  EXPECT_EQ(cache.bytes(), 160u * 2 * 2 * 2 * 32 * 2 + 64u * 4 * 2 * 2 * 8 * 2);
  EXPECT_EQ(cache.page_bytes(), 16u * 2 * 2 * 2 * 32 * 2) << "of the wider ones";
  EXPECT_EQ(cache.pages(1).keys.shape, (Shape{4, 16, 2, 8}));
  EXPECT_EQ(cache.pages(3).keys.shape, (Shape{10, 16, 2, 32}));
}

// Chunks and a window of equal length are groups of their own; one pool for both looks back as the window.
TEST(PageGroups, ChunksAreNoWindow) {
  ModelSpec spec = six_layers();
  for (const std::size_t i : {std::size_t{0}, std::size_t{3}}) spec.blocks[i].pages = {2, 8, 100, true};
  const PageGroups groups = page_groups(spec, true);
  ASSERT_EQ(groups.windows.size(), 3u);
  EXPECT_TRUE(groups.windows[0].chunks);
  EXPECT_FALSE(groups.windows[1].chunks || groups.windows[2].chunks);
  EXPECT_FALSE(page_groups(spec, false).windows[0].chunks) << "what a window needs";
  for (BlockSpec& block : spec.blocks) block.pages.chunks = true;
  EXPECT_TRUE(page_groups(spec, false).windows[0].chunks);
  spec.blocks[1].pages.window = 150;  // of which none begins where each of 100 does
  EXPECT_FALSE(page_groups(spec, false).windows[0].chunks);
  EXPECT_EQ(page_groups(spec, false).windows[0].positions, 150);
}

// Layers 6 and 7 behind those six read the pages of layers 5 and 3.
ModelSpec eight_layers() {
  ModelSpec spec = six_layers();
  for (const std::size_t owner : {std::size_t{5}, std::size_t{3}}) {
    AttentionSpec attention;
    attention.shared_pages = owner;
    spec.blocks.emplace_back().sublayers.push_back({{}, attention, {}, {}, {}});
  }
  return spec;
}

TEST(PageGroups, ALayerThatSharesPagesIsWhereItsOwnerIs) {
  for (const bool same_devices : {true, false}) {
    const PageGroups alone = page_groups(six_layers(), same_devices),
                     groups = page_groups(eight_layers(), same_devices);
    EXPECT_EQ(windows_of_groups(groups), windows_of_groups(alone));
    EXPECT_EQ(groups.places[6].group, groups.places[5].group);
    EXPECT_EQ(groups.places[7].group, groups.places[3].group);
  }
}

TEST(KvCache, SharedPagesTakeNoMemory) {
  const auto backend = make_reference_backend();
  const ModelSpec spec = eight_layers();
  KvCache cache(spec, *backend, {DType::kBF16}, 16, 4);
  EXPECT_EQ(cache.bytes(), KvCache(six_layers(), *backend, {DType::kBF16}, 16, 4).bytes());
  cache.set_scales(5, 2.0f, 3.0f);
  EXPECT_EQ(cache.pages(6).keys.pointer, cache.pages(5).keys.pointer);
  EXPECT_EQ(cache.pages(6).value_scale, 3.0f);
  EXPECT_EQ(cache.pages(7).values.pointer, cache.pages(3).values.pointer);
  EXPECT_EQ(spec.kv_bytes({DType::kBF16}), six_layers().kv_bytes({DType::kBF16}));
}

// Three pages of two layers stand where one of six would; layers of different groups write different pages of
// the same memory, and copies take both layers of a page along, on each member.
TEST(KvCache, GroupsShareOnePool) {
  const ModelSpec spec = six_layers();
  const auto first = make_reference_backend(), second = make_fake_backend();
  std::vector<Backend*> members;
  for (int layer = 0; layer < 6; ++layer) members.insert(members.end(), {first.get(), second.get()});
  KvCache cache(spec, members, {DType::kBF16}, 10, 4, true);
  EXPECT_EQ(cache.blocks().total(), 9);
  EXPECT_EQ(cache.blocks().positions(), 12);
  EXPECT_EQ(cache.bytes(), 2u * 6u * 2u * 12u * 2u * 8u * 2u);
  EXPECT_EQ(cache.page_bytes(), 2u * 2u * 2u * 4u * 2u * 8u * 2u);
  for (std::size_t member = 0; member < 2; ++member) {
    EXPECT_EQ(cache.pages(0, member).keys.pointer, cache.pages(1, member).keys.pointer);
    EXPECT_EQ(cache.pages(3, member).values.pointer, cache.pages(5, member).values.pointer);
    EXPECT_NE(cache.pages(1, member).keys.pointer, cache.pages(2, member).keys.pointer);
    const std::size_t page = 4 * 2 * 8 * 2;
    for (const int layer : {0, 3}) {
      std::vector<std::uint8_t> bytes(9 * page);
      for (std::size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<std::uint8_t>(layer * 16 + i / page);
      members[member]->upload(cache.pages(layer, member).keys, bytes.data());
    }
  }
  cache.copy(std::vector<BlockCopy>{{7, 2}});
  for (std::size_t member = 0; member < 2; ++member)
    for (const int layer : {4, 5}) {
      std::vector<std::uint8_t> bytes(cache.pages(layer, member).keys.bytes());
      members[member]->download(bytes.data(), cache.pages(layer, member).keys);
      EXPECT_EQ(bytes[2 * bytes.size() / 9], (layer - 4) * 3 * 16 + 7);
    }
  cache.set_scales(1, 2.0f, 3.0f);
  EXPECT_EQ(cache.pages(0).key_scale, 1.0f) << "a layer's scale is its own";
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
    EXPECT_EQ(a.tables().front().blocks.size(), 2u);
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

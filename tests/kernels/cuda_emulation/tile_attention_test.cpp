// kernels/cuda/tile_attention.h against the reference: odd heads and dimensions, windows, splits; the same
// bits decoded and prefilled, and where shared memory is small.
#include "kernels/cuda/tile_attention.h"

#include <gtest/gtest.h>

#include <vector>

#include "device/cuda/attention_tiles.h"
#include "emulation_fixture.h"
#include "kernels/backend/attention_fixture.h"
#include "kernels/cuda/launch_emulated.h"

namespace llmq::cuda {
namespace {

using namespace llmq::testing;

constexpr int64_t kSharedOfHopper = 227 * 1024, kSharedOfTuring = 64 * 1024;

// All rows in one batch; where not `together`, each row is a sequence of its own, as decoding sees it.
std::vector<float> run_tile_attention(const AttentionCase& c, const AttentionData& data, bool together,
                                      int64_t most_shared = kSharedOfHopper) {
  const auto host = make_reference_backend();
  const PlacedPages placed = place_pages(*host, c, data);
  std::vector<std::int32_t> tables;
  std::vector<SequenceRows> sequences;
  std::vector<int64_t> positions, first_block;
  for (std::size_t s = 0; s < c.sequences.size(); ++s) {
    const auto [context, rows] = c.sequences[s];
    const int64_t at_once = together ? rows : 1;
    for (int64_t row = 0; row < rows; row += at_once)
      sequences.push_back(
          {static_cast<int64_t>(positions.size()) + row, at_once, context + row, placed.tables[s]});
    for (int64_t row = 0; row < rows; ++row) {
      positions.push_back(context + row);
      first_block.push_back(static_cast<int64_t>(tables.size()));
    }
    tables.insert(tables.end(), placed.tables[s].begin(), placed.tables[s].end());
  }
  const auto [tiles, wide_count] = attention_tiles(sequences, first_block, 0, c.rows(), c.heads / c.kv_heads);
  TileAttentionArguments a;
  a.splits = static_cast<int>(*std::max_element(positions.begin(), positions.end()) / kSplitKeys + 1);
  const auto parts = static_cast<std::size_t>(c.rows() * c.heads * a.splits);
  std::vector<float> mixed(parts * static_cast<std::size_t>(c.head_dim), std::nanf("")),
      greatest(parts, std::nanf("")), sum(parts, std::nanf(""));
  std::vector<BFloat16> out(data.q.size(), BFloat16{0x7fc0});
  const auto pages = [&c](void* first) {
    return KvStore{first, {KvFormat{}, c.head_dim}, 1, c.kv_heads, c.block_size, false, Element::kBF16};
  };
  a.q = data.q.data(), a.keys = pages(placed.keys.view.pointer), a.values = pages(placed.values.view.pointer),
  a.out = out.data();
  a.tiles = tiles.data(), a.wide_count = wide_count, a.tile_count = static_cast<int64_t>(tiles.size()),
  a.tables = tables.data(), a.positions = positions.data();
  a.rows = c.rows(), a.heads = c.heads, a.head_dim = c.head_dim;
  a.scale = c.problem().scale, a.look_back = c.problem().look_back(), a.softcap = c.softcap;
  const std::vector<float> sinks = c.sink_scores();
  if (c.sinks) a.sinks = sinks.data();
  a.mixed = mixed.data(), a.greatest = greatest.data(), a.sum = sum.data();
  start_tile_attention(a, most_shared, []<class Kernel>(const TileAttentionArguments& given) {
    return emulate<Kernel>(given), 0;
  });
  std::vector<float> result;
  for (const BFloat16 h : out) result.push_back(to_float(h));
  return result;
}

TEST(CudaTileAttention, AgreesWithTheReferenceDecodedAndPrefilled) {
  const auto oracle = make_reference_backend();
  for (AttentionCase c :
       {AttentionCase{1, 1, 2, 0, 16, {{0, 1}}}, AttentionCase{4, 2, 64, 0, 16, {{0, 17}, {30, 1}, {5, 3}}},
        AttentionCase{9, 3, 18, 0, 5, {{62, 70}}}, AttentionCase{6, 1, 80, 20, 16, {{0, 30}, {100, 3}}},
        AttentionCase{3, 1, 128, 0, 16, {{510, 4}, {1029, 2}}},
        AttentionCase{8, 1, 144, 600, 32, {{1200, 2}, {3, 1}}}, AttentionCase{2, 2, 64, 1, 16, {{511, 3}}},
        AttentionCase{16, 2, 128, 0, 16, {{500, 20}, {700, 1}}}, AttentionCase{8, 1, 256, 40, 7, {{60, 9}}},
        AttentionCase{8, 2, 64, 0, 16, {{510, 4}, {0, 30}}, {}, true, 3, true},
        AttentionCase{8, 2, 256, 128, 16, {{700, 20}}, {}, true, 0.5f, false},
        AttentionCase{8, 1, 64, 128, 16, {{1100, 3}, {0, 1}}, {}, true, 0, true},
        AttentionCase{4, 2, 64, 100, 16, {{90, 20}, {599, 3}}, {}, true, 0, false, true},
        AttentionCase{8, 1, 64, 512, 16, {{500, 30}, {1024, 1}}, {}, true, 0, true, true}}) {
    c.compute = Compute::kBFloat16;
    const AttentionData data = make_attention_data(c, 3);
    AttentionData magnitudes = data;
    for (std::vector<float>& values : magnitudes.values) values = absolute(values);
    const std::vector<float> want = run_attention(*oracle, c, data, true),
                             means = run_attention(*oracle, c, magnitudes, true);
    const std::vector<float> got = run_tile_attention(c, data, true);
    EXPECT_EQ(outside(got, widened(want), attention_bound(c, data, want, means)), "")
        << c.heads << " " << c.head_dim;
    EXPECT_TRUE(same_bits(got, run_tile_attention(c, data, false))) << c.heads << " " << c.head_dim;
    EXPECT_TRUE(same_bits(got, run_tile_attention(c, data, true, kSharedOfTuring)))
        << c.heads << " " << c.head_dim;
  }
}

}  // namespace
}  // namespace llmq::cuda

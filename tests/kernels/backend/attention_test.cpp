// Paged causal attention on every backend, within a bound built from its two sums and its softmax.
#include <limits>

#include "attention_fixture.h"

namespace llmq::testing {
namespace {

class Attention : public BackendTest {
 protected:
  void check(const AttentionCase& c, double q_scale = 1) {
    const AttentionData data = make_attention_data(c, 3, q_scale);
    AttentionData magnitudes = data;
    for (std::vector<float>& values : magnitudes.values) values = absolute(values);
    const std::vector<float> want = run_attention(oracle(), c, data, true),
                             means = run_attention(oracle(), c, magnitudes, true);
    const std::vector<double> bound = attention_bound(c, data, want, means);
    ASSERT_EQ(outside(run_attention(backend(), c, data), widened(want), bound), "")
        << "heads " << c.heads << "/" << c.kv_heads << " dim " << c.head_dim << " window " << c.sliding_window
        << " block " << c.block_size;
    if (q_scale > 1) return;
    // Another value at the first position is outside the bound.
    if (c.sliding_window != 0 || c.sequences[0].first + c.sequences[0].second >= 40) return;
    AttentionData planted = data;
    planted.values[0][0] += 4;  // row 0 sees this position alone
    EXPECT_NE(outside(run_attention(oracle(), c, planted), widened(want), bound), "");
  }
};

TEST_P(Attention, OddShapes) {
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16})
    for (const int dim : {2, 16, 18, 64, 80, 128})
      for (const auto& [heads, kv_heads] : std::vector<std::pair<int, int>>{{1, 1}, {4, 2}, {9, 3}, {6, 1}}) {
        check({heads, kv_heads, dim, 0, 16, {{0, 1}}, compute});
        check({heads, kv_heads, dim, 0, 16, {{0, 17}, {30, 1}, {5, 3}}, compute});
      }
}

TEST_P(Attention, LongerThanATile) {
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16}) {
    check({3, 1, 64, 0, 16, {{0, 130}, {191, 2}, {63, 1}, {64, 1}}, compute});
    check({2, 2, 32, 0, 1, {{62, 5}}, compute});
    check({2, 2, 32, 0, 48, {{62, 70}}, compute});
  }
}

TEST_P(Attention, SlidingWindow) {
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16})
    for (const std::int64_t window : {1, 2, 5, 63, 64, 65, 500})
      check({4, 2, 16, window, 16, {{0, 70}, {140, 3}, {4, 1}}, compute});
}

// Chunks that end within a tile, at its end and behind it; sequences that begin, pass and end a chunk.
TEST_P(Attention, Chunks) {
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16})
    for (const std::int64_t chunk : {1, 2, 5, 63, 64, 65, 100, 500})
      for (const bool sinks : {false, true})
        check({4,
               2,
               16,
               chunk,
               16,
               {{0, 70}, {140, 3}, {4, 1}, {chunk, 2}, {chunk * 2 - 1, 1}},
               compute,
               true,
               0,
               sinks,
               true});
}

// A chunk is no window: where one begins nothing of the chunk before is seen.
TEST_P(Attention, ChunksBeginAnew) {
  const AttentionCase windowed{2, 1, 16, 8, 16, {{8, 1}}}, alone{2, 1, 16, 0, 16, {{0, 1}}};
  AttentionCase chunked = windowed;
  chunked.chunks = true;
  const AttentionData data = make_attention_data(windowed, 3);
  AttentionData last = data;
  last.keys[0].erase(last.keys[0].begin(), last.keys[0].end() - 16);
  last.values[0].erase(last.values[0].begin(), last.values[0].end() - 16);
  const std::vector<float> got = run_attention(backend(), chunked, data);
  EXPECT_TRUE(same_bits(got, run_attention(backend(), alone, last)));
  EXPECT_FALSE(same_bits(got, run_attention(backend(), windowed, data)));
}

TEST_P(Attention, SoftcapAndSinks) {
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16})
    for (const float softcap : {0.0f, 0.5f, 20.0f})
      for (const bool sinks : {false, true})
        for (const auto& [dim, window] :
             std::vector<std::pair<int, std::int64_t>>{{16, 0}, {18, 70}, {64, 0}, {64, 70}}) {
          if (softcap == 0 && !sinks) continue;  // all other tests
          check({6, 2, dim, window, 16, {{0, 70}, {140, 3}, {4, 1}}, compute, true, softcap, sinks});
          check({8, 1, dim, window, 7, {{0, 5}, {90, 2}}, compute, true, softcap, sinks});
        }
}

// Latents: every head looks at one row, wider than any head of its own.
TEST_P(Attention, HeadsAsWideAsLatents) {
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16}) {
    check({20, 1, 576, 0, 16, {{0, 3}, {70, 2}}, compute});
    check({3, 1, 516, 0, 16, {{63, 2}}, compute});
    check({2, 1, 640, 0, 16, {{0, 2}}, compute});
  }
}

// What the two do shows: without either the result is another.
TEST_P(Attention, SoftcapAndSinksMatter) {
  const AttentionCase plain{4, 2, 16, 0, 16, {{0, 30}}};
  const AttentionData data = make_attention_data(plain, 3);
  AttentionCase capped = plain, sunk = plain;
  capped.softcap = 2, sunk.sinks = true;
  const std::vector<float> want = run_attention(backend(), plain, data);
  for (const AttentionCase& other : {capped, sunk}) {
    const std::vector<float> got = run_attention(backend(), other, data);
    double difference = 0;
    for (std::size_t i = 0; i < got.size(); ++i)
      difference = std::max(difference, std::fabs(static_cast<double>(got[i]) - want[i]));
    EXPECT_GT(difference, 0.1);
  }
}

// Scores so far apart that exp underflows and only the greatest key counts; every earlier maximum is left
// behind by a later one.
TEST_P(Attention, ExtremeScores) { check({4, 2, 16, 0, 16, {{0, 100}}, Compute::kFloat32}, 300); }

// Rows of one kind, one behind the other, and what they stand for.
struct PackedRows {
  std::vector<std::uint8_t> bytes;
  std::vector<float> values;
};

PackedRows packed_rows(const std::vector<float>& numbers, KvRow row, float scale) {
  const auto size = static_cast<std::size_t>(row.bytes()), width = static_cast<std::size_t>(row.n);
  const std::size_t rows = numbers.size() / width;
  PackedRows packed{std::vector<std::uint8_t>(rows * size), std::vector<float>(numbers.size())};
  for (std::size_t r = 0; r < rows; ++r) {
    kv_store_row(row, packed.bytes.data() + r * size, numbers.data() + r * width, scale);
    kv_load_row(row, packed.values.data() + r * width, packed.bytes.data() + r * size, scale);
  }
  return packed;
}

constexpr KvFormats kKvTypes[] = {kKvInt8, kKvInt4, kKvFloat8, kKvFloat8E5M2, kKvFloat16};

// Pages of codes give the bits of pages in F32 that hold what the codes stand for, and load_kv() gives those
// numbers.
TEST_P(Attention, PackedPagesAreWhatTheyStandFor) {
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16})
    for (const KvFormats& formats : kKvTypes)
      for (const int dim : {6, 18, 64, 80, 128})
        for (const int block_size : {8, 16}) {
          const AttentionCase c{4, 2, dim, 0, block_size, {{85, 20}, {0, 3}}, compute};
          AttentionData data = make_attention_data(c, 5);
          const PlacedPages plain_places = place_pages(backend(), c, data);
          const std::int64_t blocks = plain_places.pages.keys.shape[0], slots = blocks * block_size;
          const KvRow of_keys{formats.keys, dim}, of_values{formats.values, dim};
          const auto placed = [&](KvRow row) {
            const Shape shape{blocks, c.kv_heads, block_size, row.bytes()};
            Buffer pages = backend().allocate(static_cast<std::size_t>(shape.elements()));
            backend().upload(pages.view(DType::kU8, shape),
                             std::vector<std::uint8_t>(pages.bytes(), 0xff).data());
            return std::pair(pages.view(DType::kU8, shape), std::move(pages));
          };
          const auto keys = placed(of_keys), values = placed(of_values);
          const KvPages packed{keys.first, values.first, block_size, formats, 0.5f, 0.25f};
          // The same numbers by both ways: stored as rows, and as F32 what the rows stand for.
          const Shape all{slots, c.kv_heads, dim};
          const Buffer f32_keys = backend().allocate(static_cast<std::size_t>(all.elements()) * 4),
                       f32_values = backend().allocate(static_cast<std::size_t>(all.elements()) * 4);
          const Shape f32_shape{blocks, block_size, c.kv_heads, dim};
          const KvPages plain{f32_keys.view(DType::kF32, f32_shape), f32_values.view(DType::kF32, f32_shape),
                              block_size};
          for (std::size_t s = 0; s < c.sequences.size(); ++s) {
            const std::int64_t positions = c.sequences[s].first + c.sequences[s].second;
            std::vector<std::int64_t> places;
            for (std::int64_t p = 0; p < positions; ++p)
              places.push_back(
                  std::int64_t{plain_places.tables[s][static_cast<std::size_t>(p / block_size)]} *
                      block_size +
                  p % block_size);
            const Shape rows{positions, c.kv_heads, dim};
            const Placed k = put(backend(), DType::kF32, rows, data.keys[s]),
                         v = put(backend(), DType::kF32, rows, data.values[s]);
            backend().store_kv(packed, k.view, v.view, places);
            const std::vector<float> want_k = packed_rows(data.keys[s], of_keys, 0.5f).values,
                                     want_v = packed_rows(data.values[s], of_values, 0.25f).values;
            const Placed got_k = poisoned(backend(), DType::kF32, rows),
                         got_v = poisoned(backend(), DType::kF32, rows);
            backend().load_kv(got_k.view, got_v.view, packed, places);
            ASSERT_TRUE(same_bits(get(backend(), got_k.view), want_k));
            ASSERT_TRUE(same_bits(get(backend(), got_v.view), want_v));
            backend().store_kv(plain, got_k.view, got_v.view, places);
          }
          std::vector<SequenceRows> sequences;
          std::int64_t first = 0;
          for (std::size_t s = 0; s < c.sequences.size(); ++s) {
            sequences.push_back({first, c.sequences[s].second, c.sequences[s].first, plain_places.tables[s]});
            first += c.sequences[s].second;
          }
          const Placed q = put(backend(), DType::kF32, {c.rows(), c.heads, dim}, data.q);
          const auto run = [&](const KvPages& pages) {
            const Placed out =
                poisoned(backend(), activation_dtype(compute), {c.rows(), std::int64_t{c.heads} * dim});
            backend().attention(out.view, q.view, pages, sequences, c.problem());
            return get(backend(), out.view);
          };
          ASSERT_TRUE(same_bits(run(packed), run(plain)))
              << "format " << static_cast<int>(formats.values) << ", dim " << dim << ", block " << block_size;
        }
}

// Half a step of the row's scale, which is rounded up by at most 2^-10; reading rounds once more.
TEST(KvRow, KeepsEveryNumberToHalfAStep) {
  Numbers numbers(5);
  for (int trial = 0; trial < 200; ++trial) {
    const std::int64_t n = 33 + trial % 7;
    const std::vector<float> x = numbers.values(n, trial % 3, trial % 2 == 0 ? 1 : 50);
    float largest = 0;
    for (const float value : x) largest = std::max(largest, std::fabs(value));
    const auto error = [&](KvFormat format) {
      const std::vector<float> back = packed_rows(x, {format, n}, 1).values;
      float worst = 0;
      for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::fabs(back[i] - x[i]));
      return worst;
    };
    EXPECT_LE(error(KvFormat::kInt8), largest / 127 / 2 * 1.002f);
    EXPECT_LE(error(KvFormat::kInt5), largest / 16 / 2 * 1.002f);
    EXPECT_LE(error(KvFormat::kInt4), largest / 8 / 2 * 1.002f);
    EXPECT_LE(error(KvFormat::kFloat8), largest * 0x1p-4f);
    EXPECT_LE(error(KvFormat::kFloat8E5M2), largest * 0x1p-3f);
    EXPECT_LE(error(KvFormat::kFloat16), largest * 0x1p-11f);
  }
}

TEST(KvRow, WhatIsNotFiniteIsNotHidden) {
  const auto back = [](const std::vector<float>& x, KvFormat format) {
    return packed_rows(x, {format, static_cast<std::int64_t>(x.size())}, 1).values;
  };
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::nanf(""), infinity, -infinity})
    for (const KvFormat format : {KvFormat::kInt8, KvFormat::kInt5, KvFormat::kInt4})
      for (const float value : back({1, 2, bad, 4}, format)) EXPECT_TRUE(std::isnan(value));
  for (const KvFormat format : {KvFormat::kFloat8, KvFormat::kFloat8E5M2, KvFormat::kFloat16})
    EXPECT_TRUE(std::isnan(back({std::nanf("")}, format)[0]));
  EXPECT_EQ(back({1e30f, -infinity, 0.5f}, KvFormat::kFloat16), (std::vector<float>{65504, -65504, 0.5f}))
      << "clamped";
  EXPECT_EQ(back({500, -infinity, 0.5f}, KvFormat::kFloat8), (std::vector<float>{448, -448, 0.5f}));
  EXPECT_EQ(back({500, -infinity, 61440}, KvFormat::kFloat8E5M2), (std::vector<float>{512, -57344, 57344}));
  for (const KvFormat format : {KvFormat::kInt8, KvFormat::kInt5, KvFormat::kInt4}) {
    EXPECT_EQ(back({0, 0, 0}, format), (std::vector<float>{0, 0, 0}));
    const std::vector<float> huge = back({1e30f, -1e30f}, format);
    EXPECT_GT(huge[0], 60000) << "clamped, not wrapped";
    EXPECT_LT(huge[1], -60000);
  }
}

TEST(KvRow, TakesTheBytesOfItsBitsAndAScale) {
  EXPECT_EQ((KvRow{KvFormat::kInt5, 64}.bytes()), 42);
  EXPECT_EQ((KvRow{KvFormat::kInt5, 128}.bytes()), 82);
  EXPECT_EQ((KvRow{KvFormat::kInt4, 64}.bytes()), 34);
  EXPECT_EQ((KvRow{KvFormat::kInt4, 128}.bytes()), 66);
  EXPECT_EQ((KvRow{KvFormat::kInt8, 64}.bytes()), 66);
  EXPECT_EQ((KvRow{KvFormat::kFloat8, 64}.bytes()), 64);
  EXPECT_EQ((KvRow{KvFormat::kFloat8E5M2, 64}.bytes()), 64);
  EXPECT_EQ((KvRow{KvFormat::kFloat16, 64}.bytes()), 128);
}

INSTANTIATE_TEST_SUITE_P(Every, Attention, ::testing::ValuesIn(backends({1, 2})), param_name);

}  // namespace
}  // namespace llmq::testing

// Statistics against sums taken by hand in double, and their bytes.
#include "calibration/input_stats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/half.h"
#include "base/side_by_side.h"
#include "support/stand_in_library.h"

namespace llmq {
namespace {

std::vector<float> small_integers(std::int64_t count,
                                  std::uint32_t seed) {  // exact in BF16, and so are all sums below 2^24
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& v : values)
    v = static_cast<float>(static_cast<int>((seed = seed * 1664525u + 1013904223u) >> 28) - 8);
  return values;
}

InputStats stats_of(const std::vector<float>& x, std::int64_t rows, std::int64_t channels) {
  const auto backend = make_reference_backend();
  InputStats stats(channels);
  stats.add(*backend, TensorView(x.data(), DType::kF32, {rows, channels}));
  return stats;
}

TEST(InputStats, EqualsSumsByHand) {
  // more than one chunk, and than one tile of the square
  constexpr std::int64_t kRows = 4099, kChannels = 37;
  const std::vector<float> x = small_integers(kRows * kChannels, 1);
  const InputStats stats = stats_of(x, kRows, kChannels);
  EXPECT_EQ(stats.tokens(), kRows);
  ThreadPool pool(3);
  const ZeroedNumbers<float> square = stats.gram_square(pool);
  for (std::int64_t i = 0; i < kChannels; ++i) {
    double absolute = 0;
    float most = 0;
    for (std::int64_t t = 0; t < kRows; ++t) {
      absolute += std::fabs(x[static_cast<std::size_t>(t * kChannels + i)]);
      most = std::max(most, std::fabs(x[static_cast<std::size_t>(t * kChannels + i)]));
    }
    EXPECT_EQ(stats.mean_absolute()[static_cast<std::size_t>(i)], absolute / kRows);
    EXPECT_EQ(stats.absolute_max()[static_cast<std::size_t>(i)], most);
    for (std::int64_t j = 0; j < kChannels; ++j) {
      double sum = 0;
      for (std::int64_t t = 0; t < kRows; ++t)
        sum += static_cast<double>(x[static_cast<std::size_t>(t * kChannels + i)]) *
               x[static_cast<std::size_t>(t * kChannels + j)];
      EXPECT_EQ(stats.gram_at(i, j), sum);
      EXPECT_EQ(square[static_cast<std::size_t>(i * kChannels + j)], static_cast<float>(sum));
    }
  }
}

// Chunks of any length, in any order and from any number of devices at once; the largest is 2^20 of the
// smallest, so that sums in order would differ.
TEST(InputStats, DoNotDependOnTheOrderOfChunksOrOnDevices) {
  constexpr std::int64_t kChunks[] = {100, 31, kGramChunkRows + 77, 64, 2, 131}, kChannels = 40;
  std::vector<std::int64_t> first = {0};
  for (const std::int64_t rows : kChunks) first.push_back(first.back() + rows);
  const std::int64_t rows = first.back();
  std::vector<float> x = small_integers(rows * kChannels, 3);
  for (std::size_t i = 0, chunk = 0; i < x.size(); ++i) {
    if (static_cast<std::int64_t>(i) / kChannels == first[chunk + 1]) ++chunk;
    const int scale = static_cast<int>(i % 13) * 3 + (chunk % 2 == 0 ? 0 : -20);
    x[i] = std::ldexp(x[i] * (1.0f + static_cast<float>(i % 97) / 1024.0f), scale);
  }
  std::vector<BFloat16> narrow(x.size());
  std::transform(x.begin(), x.end(), narrow.begin(), [](float v) { return to_bfloat16(v); });
  std::vector<std::byte> emulated;  // of BF16
  for (const std::string device : {"cpu", "emulated", "stand-in"})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto bytes_of = [&](std::size_t devices, const std::vector<std::size_t>& order) {
        std::vector<std::shared_ptr<Backend>> backends;
        for (std::size_t i = 0; i < devices; ++i)
          backends.push_back(device == "stand-in" ? testing::stand_in_backend() : make_backend({device, 1}));
        StatsCollector collector(kChannels);
        side_by_side(devices, [&](std::size_t own, const std::atomic<bool>&) {
          const std::shared_ptr<Backend>& backend = backends[own];
          const Buffer buffer =
              backend->allocate(static_cast<std::size_t>(rows * kChannels * element_bytes(dtype)));
          const TensorView all = buffer.view(dtype, {rows, kChannels});
          backend->upload(all, dtype == DType::kF32 ? static_cast<const void*>(x.data()) : narrow.data());
          GramSquare square(*backend, kChannels);
          for (std::size_t i = own; i < order.size(); i += devices)
            collector.add(square, all.row_slice(first[order[i]], kChunks[order[i]]), first[order[i]]);
        });
        return collector.finish().save();
      };
      const std::vector<std::byte> whole = bytes_of(1, {0, 1, 2, 3, 4, 5});
      EXPECT_EQ(bytes_of(1, {5, 3, 0, 4, 1, 2}), whole) << device;
      EXPECT_EQ(bytes_of(3, {0, 1, 2, 3, 4, 5}), whole) << device;
      if (device == "emulated") emulated = whole;
      EXPECT_TRUE(device != "stand-in" || dtype != DType::kBF16 || whole == emulated);
    }
}

TEST(InputStats, RowsOfAGramMatrixFollowWholeSteps) {
  const std::vector<float> x = small_integers(kGramTokens, 5);
  for (const char* device : {"cpu", "reference", "fake", "emulated"}) {
    const auto backend = make_backend({device, 1});
    const Buffer square = backend->allocate(sizeof(float)),
                 rows = backend->allocate(x.size() * sizeof(float));
    const TensorView g = square.view(DType::kF32, {1, 1}), all = rows.view(DType::kF32, {kGramTokens, 1});
    backend->upload(all, x.data());
    EXPECT_NO_THROW(backend->gram(g, all, kGramTokens)) << device;
    EXPECT_THROW(backend->gram(g, all, kGramTokens - 1), Error) << device;
  }
}

TEST(InputStats, FirstTokensStandForAll) {
  constexpr std::int64_t kRows = 40, kChannels = 5;
  const std::vector<float> x = small_integers(kRows * kChannels, 9);
  const auto backend = make_cpu_backend(1);
  InputStats all(kChannels), first(kChannels);
  const TensorView view(x.data(), DType::kF32, {kRows, kChannels});
  all.add(*backend, view);
  first.add(*backend, view.row_slice(0, 16));
  StatsCollector collector(kChannels, 16);
  GramSquare square(*backend, kChannels);
  for (const std::int64_t row : {30, 10, 0, 20}) collector.add(square, view.row_slice(row, 10), row);
  const InputStats few = collector.finish();
  EXPECT_EQ(few.tokens(), all.tokens());
  EXPECT_EQ(few.mean_absolute(), all.mean_absolute());
  for (std::int64_t i = 0; i < kChannels; ++i)
    for (std::int64_t j = 0; j < kChannels; ++j) EXPECT_EQ(few.gram_at(i, j), first.gram_at(i, j) * 2.5);
  EXPECT_NE(few.gram_at(0, 0), all.gram_at(0, 0));
}

TEST(InputStats, MergingEqualsOneRun) {
  const std::vector<float> a = small_integers(30, 1), b = small_integers(12, 2);
  std::vector<float> both = a;
  both.insert(both.end(), b.begin(), b.end());
  InputStats merged = stats_of(a, 10, 3);
  merged.merge(stats_of(b, 4, 3));
  EXPECT_EQ(merged.save(), stats_of(both, 14, 3).save());
  EXPECT_THROW(merged.merge(InputStats(4)), Error);
}

TEST(InputStats, DividingChannelsIsWhatScaledInputsGive) {
  std::vector<float> x = small_integers(40, 3);
  InputStats divided = stats_of(x, 10, 4);
  const std::vector<float> s = {1, 2, 0.5f, 4};  // powers of two: exact
  divided.divide_channels(s);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] /= s[i % 4];
  EXPECT_EQ(divided.save(), stats_of(x, 10, 4).save());
}

TEST(InputStats, SavedBytesComeBackAndDamageIsFound) {
  const InputStats stats = stats_of(small_integers(35, 4), 7, 5);
  const std::vector<std::byte> bytes = stats.save();
  EXPECT_EQ(InputStats::load(bytes, "s").save(), bytes);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW(InputStats::load(std::span(bytes).first(size), "s"), Error) << size;
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_THROW(InputStats::load(longer, "s"), Error);
  for (const std::size_t at :
       {std::size_t{0}, std::size_t{15}, std::size_t{23}}) {  // magic; the top bytes of channels and tokens
    std::vector<std::byte> damaged = bytes;
    damaged[at] ^= std::byte{0x80};
    EXPECT_THROW(InputStats::load(damaged, "s"), Error) << at;
  }
}

TEST(InputStats, ASumOfMagnitudesIsNotNegative) {
  std::vector<std::byte> bytes = stats_of({3, 4}, 2, 1).save();
  bytes[24 + 7] ^= std::byte{0x80};  // the sign of the first sum, behind magic, channels and tokens
  EXPECT_THROW(InputStats::load(bytes, "s"), Error);
}

}  // namespace
}  // namespace llmq

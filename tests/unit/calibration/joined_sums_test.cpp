// What ranks join against what one of them adds alone: the same bits.
#include "calibration/joined_sums.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <mutex>
#include <numeric>

#include "calibration/input_stats.h"
#include "calibration/row_sample.h"
#include "ranks/thread_ranks.h"
#include "support/stand_in_library.h"

namespace llmq {
namespace {

// Numbers of either sign whose magnitudes lie up to 2^60 apart, so that totals lack much of them.
std::vector<float> wide_numbers(std::size_t count, std::uint32_t seed) {
  std::vector<float> values(count);
  for (float& v : values) {
    seed = seed * 1664525u + 1013904223u;
    v = std::ldexp(static_cast<float>(static_cast<std::int32_t>(seed)), static_cast<int>(seed >> 8) % 60);
  }
  return values;
}

constexpr int kJoinedParts = 7;

// Bands so short that a last one is a part of one, and that owners have several and none.
TEST(JoinedSums, AreTheRealSumOfAllRanksRoundedOnce) {
  constexpr std::size_t kPlaces = 1000;
  std::vector<std::vector<float>> parts;
  for (std::uint32_t part = 0; part < kJoinedParts; ++part) parts.push_back(wide_numbers(kPlaces, part));
  ExactSums whole(kPlaces);
  for (const std::vector<float>& part : parts) whole.add(0, std::span<const float>(part));
  ASSERT_GT(whole.residues(), kPlaces) << "or nothing but totals would be sent";
  const ZeroedNumbers<double> expected = std::move(whole).round();
  for (const int size : {1, 2, 3, 5})
    for (const std::uint64_t band : {std::uint64_t{96}, std::uint64_t{kPlaces}, std::uint64_t{5000}})
      run_as_ranks(size, [&](Ranks& ranks) {
        ExactSums own(kPlaces);
        for (int part = ranks.rank(); part < kJoinedParts; part += size)
          own.add(0, std::span<const float>(parts[static_cast<std::size_t>(part)]));
        const ZeroedNumbers<double> joined = round_together(std::move(own), ranks, band);
        EXPECT_TRUE(std::equal(joined.begin(), joined.end(), expected.begin(), expected.end()))
            << "rank " << ranks.rank() << " of " << size << ", bands of " << band;
      });
}

TEST(JoinedSums, TrafficIsTwoTrianglesAtMostAndTheirResidues) {
  constexpr std::size_t kPlaces = 1 << 18;
  const std::vector<float> ones(kPlaces, 1.0f);  // exact
  for (const int size : {1, 2, 4}) {
    std::mutex mutex;
    std::uint64_t all = 0;
    run_as_ranks(size, [&](Ranks& ranks) {
      ExactSums own(kPlaces);
      own.add(0, std::span<const float>(ones));
      const ZeroedNumbers<double> joined = round_together(std::move(own), ranks, 1 << 16);
      EXPECT_EQ(joined[kPlaces - 1], size);
      const std::lock_guard lock(mutex);
      all += ranks.traffic();
    });
    EXPECT_EQ(all, 2 * sizeof(double) * kPlaces * static_cast<std::uint64_t>(size - 1)) << size << " ranks";
  }
}

TEST(JoinedSums, SumsThatAreNotFiniteAreSoOnEveryRank) {
  run_as_ranks(2, [&](Ranks& ranks) {
    ExactSums own(2);
    const std::vector<float> values = {ranks.rank() == 0 ? HUGE_VALF : 1.0f, 2.0f};
    own.add(0, std::span<const float>(values));
    const ZeroedNumbers<double> joined = round_together(std::move(own), ranks);
    EXPECT_FALSE(std::isfinite(joined[0]));
    EXPECT_EQ(joined[1], 4);
  });
}

TEST(JoinedSums, CountsAddUpAndTheLargestIsTaken) {
  run_as_ranks(3, [&](Ranks& ranks) {
    const auto rank = static_cast<float>(ranks.rank());
    std::vector<std::int64_t> counts = {1, ranks.rank()};
    add_up(counts, ranks);
    EXPECT_EQ(counts, (std::vector<std::int64_t>{3, 3}));
    std::vector<float> largest = {rank, 2 - rank, 7};
    take_largest(largest, ranks);
    EXPECT_EQ(largest, (std::vector<float>{2, 2, 7}));
    std::vector<float> known(3);  // an odd number; a negative zero, and a number with all bits of its kind
    known[static_cast<std::size_t>(ranks.rank())] = ranks.rank() == 0 ? -0.0f : -std::nextafter(2.0f, 1.0f);
    join_known(known, ranks);
    EXPECT_TRUE(std::signbit(known[0]));
    EXPECT_EQ(std::bit_cast<std::uint32_t>(known[2]), 0xbfffffffu);
  });
}

// Seven units of three numbers, the last of one, by as many ranks as make some of them have nothing.
TEST(JoinedSums, PartsOfRanksAreJoined) {
  constexpr std::size_t kUnits = 7, kNumbers = 19;
  std::vector<int> expected(kNumbers);
  std::iota(expected.begin(), expected.end(), 1);
  for (const int size : {1, 2, 3, 9})
    run_as_ranks(size, [&](Ranks& ranks) {
      std::vector<int> numbers(kNumbers, -1);
      const Dealt own = own_part(kUnits, ranks);
      for (std::size_t i = 3 * own.first; i < std::min(3 * own.end, kNumbers); ++i) numbers[i] = expected[i];
      join_parts(std::span(numbers), kUnits, 3, ranks);
      EXPECT_EQ(numbers, expected) << "rank " << ranks.rank() << " of " << size;
    });
}

// Chunks of an input dealt to ranks in runs; magnitudes 2^40 apart from chunk to chunk.
TEST(JoinedSums, StatisticsAndRowsOfRanksAreThoseOfOneProcess) {
  constexpr std::int64_t kChannels = 19, kRows = 12, kChunks = 5;
  std::vector<float> x = wide_numbers(kChannels * kRows * kChunks, 3);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = std::ldexp(x[i], i / (kChannels * kRows) % 2 == 0 ? -60 : -40);
  const TensorView view(x.data(), DType::kF32, {kRows * kChunks, kChannels});
  for (const std::int64_t gram_tokens : {kAllTokens, std::int64_t{30}, std::int64_t{0}}) {
    std::vector<std::byte> expected;
    std::vector<float> expected_rows;
    for (const int size : {1, 2, 3, 5})
      run_as_ranks(size, [&](Ranks& ranks) {
        const auto backend = make_cpu_backend(1);
        StatsCollector collector(kChannels, gram_tokens);
        GramSquare square(*backend, kChannels);
        RowSample rows(kRows * kChunks, kChannels, 9);
        for (std::int64_t chunk = ranks.rank() * kChunks / size; chunk < (ranks.rank() + 1) * kChunks / size;
             ++chunk) {
          const TensorView own = view.row_slice(chunk * kRows, kRows);
          collector.add(square, own, chunk * kRows);
          rows.add(*backend, own, chunk * kRows);
        }
        const InputStats stats = collector.finish(ranks);
        rows.join(ranks);
        EXPECT_EQ(stats.tokens(), kRows * kChunks);
        const std::vector<float> joined(rows.row(0), rows.row(0) + rows.rows() * kChannels);
        if (size == 1) expected = stats.save(), expected_rows = joined;
        EXPECT_TRUE(stats.save() == expected) << "rank " << ranks.rank() << " of " << size;
        EXPECT_EQ(joined, expected_rows);
      });
  }
}

}  // namespace
}  // namespace llmq

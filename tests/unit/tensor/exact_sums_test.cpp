// Sums against 128-bit integers, which hold the real sum of all addends here, in any order and any groups.
#include "tensor/exact_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

namespace llmq {
namespace {

__extension__ using Wide = __int128;

constexpr std::size_t kPlaces = 700, kRows = 24;  // more places than are added between two looks

struct Addends {
  std::vector<std::vector<float>> rows;
  std::vector<double> sums;  // rounded once
};

// Integers of 24 bits times powers of two up to 2^40, a power for each row, a few for single places.
Addends addends(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Addends made{{}, {}};
  std::vector<Wide> sums(kPlaces);
  for (std::size_t r = 0; r < kRows; ++r) {
    std::vector<float>& row = made.rows.emplace_back();
    const auto scale = static_cast<int>(random() % 41);
    for (Wide& sum : sums) {
      const auto integer =
          static_cast<std::int64_t>(random() & 0xffffff) - (random() % 3 == 0 ? 0xffffff : 0);
      const int own = random() % 9 == 0 ? static_cast<int>(random() % 41) : scale;
      row.push_back(std::ldexp(static_cast<float>(integer), own));
      sum += Wide{integer} << own;
    }
  }
  for (const Wide sum : sums) made.sums.push_back(static_cast<double>(sum));
  return made;
}

std::vector<double> rounded(ExactSums sums) {
  const ZeroedNumbers<double> values = std::move(sums).round();
  return {values.begin(), values.end()};
}

TEST(ExactSums, AreTheRealSumRoundedOnceInAnyOrder) {
  std::mt19937_64 random(3);
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    Addends made = addends(seed);
    std::vector<double> in_order(kPlaces);
    for (const std::vector<float>& row : made.rows)
      for (std::size_t i = 0; i < kPlaces; ++i) in_order[i] += static_cast<double>(row[i]);
    EXPECT_NE(in_order, made.sums) << "FP64 sums in order hold everything: this shows nothing";
    for (int shuffle = 0; shuffle < 5; ++shuffle) {
      ExactSums sums(kPlaces);
      for (const std::vector<float>& row : made.rows) sums.add(0, row);
      EXPECT_GT(sums.residues(), 0u);
      EXPECT_EQ(rounded(std::move(sums)), made.sums) << seed;
      std::shuffle(made.rows.begin(), made.rows.end(), random);
    }
  }
}

// What devices and ranks hold: groups of rows, whose totals and residues somebody adds up.
TEST(ExactSums, AreThoseOfAnyGroups) {
  const Addends made = addends(7);
  for (const std::size_t groups : {2, 3, 7}) {
    ExactSums sums(kPlaces);
    for (std::size_t group = groups; group-- > 0;) {
      ExactSums part(kPlaces);
      for (std::size_t r = group; r < kRows; r += groups) part.add(0, made.rows[r]);
      sums.add(std::move(part));
    }
    EXPECT_EQ(rounded(std::move(sums)), made.sums) << groups;
  }
}

// A place whose addends nearly cancel keeps what is left of them, and lists are merged on the way.
TEST(ExactSums, MergedListsHoldTheSame) {
  constexpr int kTimes = 3000;  // four residues each
  ExactSums sums(2);
  std::size_t most = 0;
  for (int i = 0; i < kTimes; ++i)
    for (const float value : {0x1p60f, 1.0f, -0x1p60f, 0x1p-40f, 0x1.8p30f, -0x1.8p30f, 0x1p59f}) {
      sums.add(0, std::vector<float>{value, -value});
      sums.trim();
      most = std::max(most, sums.residues());
    }
  EXPECT_LE(most, ExactSums::room_for(2));
  EXPECT_GT(most, ExactSums::room_for(2) - 4) << "this shows nothing of lists that are full";
  EXPECT_FALSE(sums.outgrown());
  const float large = kTimes * 0x1p59f;
  sums.add(0, std::vector<float>{-large, large});
  const double want = kTimes * (1 + 0x1p-40);
  EXPECT_EQ(rounded(std::move(sums)), (std::vector<double>{want, -want}));
}

TEST(ExactSums, AListThatOutgrowsItsRoomSaysSo) {
  const std::size_t places = ExactSums::room_for(1) + 1;
  ExactSums sums(places);
  sums.add(0, std::vector<float>(places, 0x1p60f));
  sums.trim();
  EXPECT_FALSE(sums.outgrown());
  sums.add(0, std::vector<float>(places, 1.0f));
  sums.trim();
  EXPECT_TRUE(sums.outgrown());
  EXPECT_EQ(sums.residues(), places);
  sums.add(0, std::vector<float>(places, -0x1p60f));
  EXPECT_EQ(rounded(std::move(sums)), std::vector<double>(places, 1.0));
}

// Half a step above an even number, and what decides lies far below.
TEST(ExactSums, RoundOnce) {
  const struct {
    std::vector<float> addends;
    double sum;
  } cases[] = {{{0x1p60f, 128.0f}, 0x1p60},
               {{0x1p60f, 128.0f, 0x1p-30f}, 0x1p60 + 256},
               {{0x1p60f, 128.0f, -0x1p-30f}, 0x1p60},
               {{-0x1p60f, -128.0f, -0x1p-90f}, -0x1p60 - 256},
               {{0x1p60f, 256.0f, 128.0f}, 0x1p60 + 512},
               {{0x1p60f, 256.0f, 128.0f, -0x1p-90f}, 0x1p60 + 256},
               {{0x1p60f, 127.0f, 2.0f}, 0x1p60 + 256},
               {{0x1p120f, 0x1p60f, 1.0f, -0x1p120f, -0x1p60f}, 1},
               {{0x1p120f, 1.0f, -0x1p120f, -1.0f}, 0}};
  for (const auto& one : cases) {
    std::vector<float> order = one.addends;
    std::sort(order.begin(), order.end());
    do {
      ExactSums sums(1);
      for (const float value : order) sums.add(0, std::span(&value, 1));
      const std::vector<double> sum = rounded(std::move(sums));
      EXPECT_EQ(sum.front(), one.sum);
      EXPECT_FALSE(std::signbit(sum.front()) && one.sum == 0);
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(ExactSums, InfinityAndNanPass) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                  kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> order = {0x1p60f, 1.0f, kInfinity, -2.0f};
  std::sort(order.begin(), order.end());
  do {
    ExactSums sums(4);
    for (const float value : order)
      sums.add(0,
               std::vector<float>{value, -value, value == 1 ? kNan : value, value == 1 ? -kInfinity : value});
    const std::vector<double> sum = rounded(std::move(sums));
    EXPECT_EQ(sum[0], std::numeric_limits<double>::infinity());
    EXPECT_EQ(sum[1], -std::numeric_limits<double>::infinity());
    EXPECT_TRUE(std::isnan(sum[2]) && std::isnan(sum[3]));
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(ExactSums, ThreadsAddBesideEachOther) {
  const Addends made = addends(11);
  ExactSums sums(kPlaces);
  {
    std::vector<std::jthread> threads;
    constexpr std::size_t kThreads = 4, kEach = kPlaces / kThreads;
    for (std::size_t t = 0; t < kThreads; ++t)
      threads.emplace_back([&made, &sums, t] {
        for (const std::vector<float>& row : made.rows)
          sums.add(t * kEach, std::span(row).subspan(t * kEach, kEach));
      });
  }
  EXPECT_EQ(rounded(std::move(sums)), made.sums);
}

}  // namespace
}  // namespace llmq

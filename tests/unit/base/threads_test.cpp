#include "base/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

namespace llmq {
namespace {

TEST(ThreadPool, EveryItemOnceAndWorkersInRange) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (const std::size_t items : {0u, 1u, 2u, 7u, 1000u}) {
      std::vector<std::atomic<int>> seen(items);
      std::atomic<bool> in_range{true};
      pool.parallel_for(items, [&](std::size_t item, int worker) {
        ++seen[item];
        if (worker < 0 || worker >= threads) in_range = false;
      });
      for (const auto& count : seen) EXPECT_EQ(count, 1);
      EXPECT_TRUE(in_range);
    }
  }
}

TEST(ThreadPool, AWorkerNumberIsNeverInUseTwice) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<bool> alone{true};
  pool.parallel_for(2000, [&](std::size_t, int worker) {
    if (inside[static_cast<std::size_t>(worker)]++ != 0) alone = false;
    --inside[static_cast<std::size_t>(worker)];
  });
  EXPECT_TRUE(alone);
}

TEST(ThreadPool, TheFirstExceptionEndsTheHandOutAndIsRethrown) {
  for (const int threads : {1, 4}) {
    ThreadPool pool(threads);
    std::atomic<int> done{0};
    try {
      pool.parallel_for(100000, [&](std::size_t item, int) {
        if (item == 3) throw std::runtime_error("item 3");
        ++done;
      });
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "item 3");
    }
    EXPECT_LT(done, 100000);
    std::atomic<int> after{0};
    pool.parallel_for(10, [&](std::size_t, int) { ++after; });  // the pool goes on
    EXPECT_EQ(after, 10);
  }
}

TEST(ThreadPool, EveryItemFailingIsOneException) {
  ThreadPool pool(4);
  for (int round = 0; round < 50; ++round)
    EXPECT_THROW(pool.parallel_for(64, [](std::size_t, int) { throw std::runtime_error("x"); }),
                 std::runtime_error);
}

TEST(ThreadPool, NestedCallsRunWhereTheyAre) {
  ThreadPool pool(3);
  std::atomic<int> inner{0};
  pool.parallel_for(20, [&](std::size_t, int) { pool.parallel_for(10, [&](std::size_t, int) { ++inner; }); });
  EXPECT_EQ(inner, 200);
}

TEST(ThreadPool, ANestedCallThatFailsLeavesThePoolNested) {
  ThreadPool pool(2);
  std::atomic<int> inner{0};
  pool.parallel_for(8, [&](std::size_t, int) {
    try {
      pool.parallel_for(4, [](std::size_t, int) { throw std::runtime_error("x"); });
    } catch (const std::runtime_error&) {
      pool.parallel_for(4, [&](std::size_t, int) { ++inner; });
    }
  });
  EXPECT_EQ(inner, 32);
}

// Sums by item and added in item order: the same bits at any thread count.
TEST(ThreadPool, ResultsDoNotDependOnTheThreadCount) {
  const auto sum = [](int threads) {
    ThreadPool pool(threads);
    std::vector<float> parts(300);
    pool.parallel_for(parts.size(), [&](std::size_t item, int) {
      float part = 0;
      for (int i = 1; i < 200; ++i) part += 1.f / static_cast<float>(static_cast<std::size_t>(i) * 7 + item);
      parts[item] = part;
    });
    return std::accumulate(parts.begin(), parts.end(), 0.f);
  };
  const float one = sum(1);
  for (const int threads : {2, 3, 5, 8}) EXPECT_EQ(sum(threads), one);
}

TEST(ThreadPool, ManyShortRounds) {
  ThreadPool pool(4);
  std::atomic<long> total{0};
  for (int round = 0; round < 2000; ++round)
    pool.parallel_for(5, [&](std::size_t item, int) { total += static_cast<long>(item); });
  EXPECT_EQ(total, 2000 * 10);
}

// Longer than a worker looks before it sleeps: each round finds some asleep, some about to be.
TEST(ThreadPool, SleepersAreWoken) {
  for (const int threads : {2, 8}) {
    ThreadPool pool(threads);
    std::atomic<int> sum{0};
    for (int round = 0; round < 60; ++round) {
      std::this_thread::sleep_for(std::chrono::microseconds(round * 50));
      pool.parallel_for(8, [&](std::size_t, int) { ++sum; });
    }
    EXPECT_EQ(sum, 60 * 8);
  }
}

// What a late worker must never do: run an item of a round that has ended, whose work is gone.
TEST(ThreadPool, ARoundIsOverWhenItReturns) {
  ThreadPool pool(8);
  for (int round = 0; round < 2000; ++round) {
    std::atomic<int> running{0};
    pool.parallel_for(static_cast<std::size_t>(2 + round % 3), [&](std::size_t, int) {
      ++running;
      --running;
    });
    ASSERT_EQ(running, 0);
  }
}

TEST(AvailableCores, IsAtLeastOne) { EXPECT_GE(available_cores(), 1); }

}  // namespace
}  // namespace llmq

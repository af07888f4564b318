// How much of the KV cache is taken and holds nothing under mixed load: the ends of last blocks, and nothing
// else.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "runtime/scheduler.h"

namespace llmq::testing {
namespace {

struct Load {
  double shortest, longest;  // tokens of prompts, evenly over their logarithm
  std::int64_t answer;       // at most
};

struct Waste {
  // of what is taken; contiguous: room for the longest context for each that runs
  double paged = 0, contiguous = 0;
};

// 600 requests, up to 32 at once, some with a shared beginning; new ones come while others run.
Waste measure(int block_size, const Load& load) {
  constexpr std::int64_t kContext = 4096;
  KvBlocks blocks(40'000 / block_size, block_size);
  Scheduler scheduler({32, 2048, kContext, 1024}, blocks);
  std::mt19937 random(7);
  std::uniform_real_distribution<double> even(0, 1);
  std::uint64_t id = 0;
  double taken = 0, unused = 0, reserved = 0, filled = 0;
  while (id < 600 || !scheduler.idle()) {
    while (id < 600 && scheduler.live().size() < 32 && random() % 3 == 0) {
      Scheduler::Request request;
      request.id = ++id;
      const auto length =
          static_cast<std::size_t>(load.shortest * std::pow(load.longest / load.shortest, even(random)));
      for (std::size_t i = 0; i < length; ++i)
        request.prompt.push_back(static_cast<std::int32_t>(id % 4 == 0 && i < 100 ? i : random() % 1000));
      request.max_tokens = 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(load.answer));
      EXPECT_EQ(scheduler.add(request), Scheduler::Refusal::kNone);
    }
    const Scheduler::Step& step = scheduler.next();
    std::vector<Scheduler::Outcome> outcomes;
    for (const Scheduler::Work& work : step.work)
      if (work.samples) outcomes.push_back({work.id, {1}, false});
    taken += (blocks.total() - blocks.free()) * static_cast<double>(block_size);
    for (const auto& [name, sequence] : scheduler.live()) {
      const KvTable& table = sequence.table;
      const std::vector<std::int32_t>& own = table.groups.front().blocks;
      if (own.empty()) continue;
      unused += static_cast<double>(own.size()) * block_size - static_cast<double>(table.length);
      reserved += kContext, filled += static_cast<double>(table.length);
    }
    scheduler.complete(outcomes);
  }
  EXPECT_EQ(blocks.free(), blocks.total());
  return {unused / taken, 1 - filled / reserved};
}

// A sequence wastes half a block on average: 7.5 places of 16. The bar is 4 %.
TEST(KvWaste, IsTheEndOfTheLastBlock) {
  const Load mixed{16, 2000, 512};
  const Waste waste = measure(16, mixed);
  RecordProperty("percent", std::to_string(100 * waste.paged));
  RecordProperty("percent_contiguous", std::to_string(100 * waste.contiguous));
  EXPECT_LE(waste.paged, 0.04);
  EXPECT_GT(waste.paged, 0.005) << "no end of a block was counted";
  EXPECT_GE(waste.contiguous, 0.6) << "the load fills its contexts, so that it shows nothing";
  EXPECT_LT(measure(8, mixed).paged, 0.6 * waste.paged);
  EXPECT_GT(measure(32, mixed).paged, 1.6 * waste.paged);
}

}  // namespace
}  // namespace llmq::testing

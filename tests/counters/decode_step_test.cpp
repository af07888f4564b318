// One decoded token asks nothing of the heap and nothing of the system, and reads every weight once.
//
// The steps counted lie between two blocks of the KV cache's table and after a few others, so that everything has its size.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/io.h"
#include "counters/counted_calls.h"
#include "runtime/greedy_batch.h"

namespace llmq::testing {
namespace {

struct Case {
  Compute compute;
  int threads;
  std::int64_t batch;
};

Engine load(const Case& c) {
  Engine::Options options;
  options.compute = c.compute;
  options.max_context = 512;
  options.kv_tokens = 512 * c.batch;
  const std::string model = std::string(LLMQ_SOURCE_DIR) + "/tests/models/tinystories-656k";
  return Engine::load(Checkpoint::open(system_io(), model), make_cpu_backend(c.threads), options);
}

constexpr Case kCases[] = {{Compute::kBFloat16, 1, 1},
                           {Compute::kBFloat16, 2, 1},
                           {Compute::kBFloat16, 2, 5},
                           {Compute::kFloat32, 2, 1}};
constexpr int kRounds = 12, kSteps = 20;  // more steps than positions in a block of the cache

// A batch that has been decoded for a while.
struct Warm {
  explicit Warm(const Case& c) : engine(load(c)), batch(engine, c.batch) {
    const std::int32_t prompt[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    for (std::int64_t i = 0; i < c.batch; ++i) batch.prefill(static_cast<std::size_t>(i), prompt);
    for (int step = 0; step < kSteps; ++step) batch.step();
  }
  Engine engine;
  GreedyBatch batch;
};

// What every round of kSteps steps needs shows in the least of many: on a busy machine a thread may take part for the first
// time in any step, and then its scratch memory is made; or look for another in vain and sleep.
std::uint64_t least_of_rounds(GreedyBatch& batch, std::uint64_t (*counter)()) {
  std::uint64_t least = UINT64_MAX;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t before = counter();
    for (int step = 0; step < kSteps; ++step) batch.step();
    least = std::min(least, counter() - before);
  }
  return least;
}

std::string words(const Case& c) {
  return "compute " + std::to_string(static_cast<int>(c.compute)) + ", threads " + std::to_string(c.threads) +
         ", batch " + std::to_string(c.batch);
}

TEST(DecodeStep, AllocatesNothing) {
  for (const Case& c : kCases) {
    Warm warm(c);
    EXPECT_EQ(least_of_rounds(warm.batch, allocations), 0u) << words(c);
  }
}

// All threads are there before the system calls are watched: the watch cannot make new ones.
TEST(DecodeStep, NeedsNoSystemCall) {
  std::vector<std::unique_ptr<Warm>> all;
  for (const Case& c : kCases) all.push_back(std::make_unique<Warm>(c));
  if (!watch_system_calls())
    GTEST_SKIP() << "this system does not let a process count its system calls (seccomp)";
  for (std::size_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(least_of_rounds(all[i]->batch, system_calls), 0u)
        << words(kCases[i]) << "; the last was number " << last_system_call();
  const std::uint64_t before = system_calls();
  ::getppid();
  EXPECT_EQ(system_calls() - before, 1u) << "the watch sees nothing";
}

}  // namespace
}  // namespace llmq::testing

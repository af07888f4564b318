// The scheduler driven by random requests, drafts, cancels and answers, with and without a sliding window,
// with several page groups, and with recurrent states. After every step: no page is leaked or shared without
// a reference, every position a sequence has computed and may look at holds its token, no other has a page,
// drafts leave nothing behind, budgets are kept; at the end everyone has finished.
#include "runtime/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "scheduler_machine.h"

namespace llmq::testing {
namespace {

Request random_request(Machine& machine, std::uint64_t id, int longest) {
  Request request{id, {}, 1 + machine.pick(20), machine.pick(5) - 2, machine.pick(5) == 0 ? "other" : ""};
  for (int i = machine.pick(longest); i >= 0; --i) request.prompt.push_back(machine.pick(9) == 0 ? 1 : 0);
  request.shares = machine.pick(8) != 0;
  if (machine.pick(8) == 0) request.most_rows = 1 + machine.pick(6);
  return request;
}

// What a finished request said is what it would have said alone.
void check_answer(const Request& request, const std::vector<std::int32_t>& tokens) {
  ASSERT_GE(tokens.size(), request.prompt.size());
  ASSERT_TRUE(std::equal(request.prompt.begin(), request.prompt.end(), tokens.begin()));
  for (std::size_t i = request.prompt.size(); i < tokens.size(); ++i)
    ASSERT_EQ(tokens[i], answer(std::span(tokens).first(i)));
  ASSERT_LE(static_cast<std::int64_t>(tokens.size() - request.prompt.size()), request.max_tokens);
}

enum class Looks : std::uint8_t { kAtAll, kThroughAWindow, kBoth, kBothFromPools, kAtAllWithStates };

// Of the page groups of a model.
std::vector<KvWindow> drawn_windows(Looks looks, unsigned seed) {
  const KvWindow window{2 + seed % 9, 1 + seed % 4}, other{4 + seed % 5, 2};
  if (looks == Looks::kAtAll || looks == Looks::kAtAllWithStates) return {KvWindow{}};
  if (looks == Looks::kThroughAWindow) return {window};
  if (seed % 4 == 0) return {window, other};
  if (seed % 4 == 1) return {window, KvWindow{}, window, other};
  return {KvWindow{}, window};
}

// 40 seeds of 8,000 steps: each of what may happen does so a thousand times and more. The cache is smaller
// where windows pass, so that it is as scarce.
void drive(Looks looks) {
  const bool stateful = looks == Looks::kAtAllWithStates, windowed = looks != Looks::kAtAll && !stateful;
  const bool apart = looks == Looks::kBothFromPools;
  std::int64_t steps = 0, preemptions = 0, drafted = 0, accepted = 0, chunks = 0, in_flight = 0, refused = 0,
               forked = 0, copies = 0, cached = 0, passed = 0, restored = 0, snapshots = 0, states_back = 0,
               of_answers = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    SchedulerLimits limits{2 + seed % 7, 8 + 5 * (seed % 4), 24 + seed % 17, 6,
                           seed % 3 == 0 ? 0 : static_cast<std::int32_t>(4 + seed)};
    if (stateful) limits.swap_pages_of_state = 1 + static_cast<std::int32_t>(seed % 3);
    if (stateful) limits.fewest_swapped = seed % 11;
    const int size = 1 + static_cast<int>(seed % 5);
    const auto count = static_cast<std::int32_t>(48 / size + static_cast<int>(seed % 3) * 8 / size);
    const std::vector<KvWindow> windows = drawn_windows(looks, seed);
    std::vector<std::int32_t> pools(apart ? 2 : 1, 0);
    std::vector<std::size_t> pool_of;
    for (const KvWindow& window : windows) {
      pool_of.push_back(apart && !pool_of.empty() ? 1 : 0);
      pools[pool_of.back()] += window.positions != 0 ? count * 2 / 3 : count;
    }
    Machine machine(limits, pools, size, seed, windows, pool_of,
                    stateful ? std::optional(static_cast<std::int32_t>(seed % 6)) : std::nullopt);
    std::map<std::uint64_t, Request> requests, request_of;
    std::uint64_t id = 0;
    std::size_t forks = 0;
    for (int i = 0; i < 8000; ++i, ++steps) {
      if (machine.pick(3) == 0) {
        const Request request = random_request(machine, ++id, 36);
        if (machine.scheduler().add(request) == Refusal::kNone)
          requests[id] = request_of[id] = request;
        else
          ++refused;
      }
      const std::uint64_t other = id - static_cast<std::uint64_t>(machine.pick(12));
      if (machine.pick(30) == 0) machine.scheduler().cancel(other), requests.erase(other);
      const bool while_running = machine.pick(30) == 0;
      machine.step(while_running ? std::optional(other) : std::nullopt);
      for (; forks < machine.forked.size(); ++forks)
        requests[machine.forked[forks].second] = request_of[machine.forked[forks].first];
      if (while_running) requests.erase(other);
      if (!machine.forked.empty() && machine.pick(40) == 0) {
        machine.scheduler().cancel(machine.forked.back().second);
        requests.erase(machine.forked.back().second);
      }
      if (::testing::Test::HasFailure()) FAIL() << "seed " << seed << ", step " << i;
    }
    for (int i = 0; !machine.scheduler().idle(); ++i, ++steps) {
      ASSERT_LT(i, 2000) << "a request does not come to its end";
      machine.step();
    }
    EXPECT_EQ(machine.blocks().free(), machine.blocks().total());
    for (const auto& entry : requests) {
      ASSERT_EQ(machine.finished.count(entry.first), 1u) << "seed " << seed << ": a request was forgotten";
      check_answer(entry.second, machine.finished.at(entry.first).second);
      if (::testing::Test::HasFailure()) FAIL() << "seed " << seed << ", request " << entry.first;
    }
    preemptions += machine.preemptions, drafted += machine.drafted, accepted += machine.accepted,
        chunks += machine.chunks;
    in_flight += machine.cancelled_in_flight, forked += static_cast<std::int64_t>(machine.forked.size()),
        copies += machine.copies;
    if (stateful)
      snapshots += machine.states().from_snapshots, states_back += machine.states().from_host,
          of_answers += machine.states().of_answers;
    cached += machine.reused, passed += machine.passed, restored += machine.restored;
  }
  EXPECT_GE(steps, 320'000);
  for (const std::int64_t count :
       {preemptions, drafted - accepted, accepted, chunks, in_flight, refused, forked, copies, cached})
    EXPECT_GT(count, 1000);
  EXPECT_EQ(passed > 1000, windowed);
  EXPECT_GT(restored, 1000);
  EXPECT_EQ(snapshots > 1000, stateful);
  EXPECT_EQ(states_back > 1000, stateful);
  EXPECT_EQ(of_answers > 1000, stateful);
}

TEST(Scheduler, RandomRequestsKeepEveryInvariant) { drive(Looks::kAtAll); }
TEST(Scheduler, RandomRequestsKeepEveryInvariantWithAWindow) { drive(Looks::kThroughAWindow); }
TEST(Scheduler, RandomRequestsKeepEveryInvariantOfPageGroups) { drive(Looks::kBoth); }

TEST(Scheduler, RandomRequestsKeepEveryInvariantOfPagePools) { drive(Looks::kBothFromPools); }
TEST(Scheduler, RandomRequestsKeepEveryInvariantOfRecurrentStates) { drive(Looks::kAtAllWithStates); }

TEST(Scheduler, RefusesWhatCouldNeverRun) {
  KvBlocks blocks(4, 4);
  Scheduler scheduler({2, 8, 32, 1}, blocks);
  const auto add = [&](std::uint64_t id, std::size_t prompt, std::int64_t most, int priority = 0) {
    return scheduler.add({id, std::vector<std::int32_t>(prompt, 1), most, priority, ""});
  };
  EXPECT_EQ(add(1, 0, 4), Refusal::kEmptyPrompt);
  EXPECT_EQ(add(1, 32, 4), Refusal::kTooLong);
  EXPECT_EQ(add(1, 10, 10), Refusal::kTooLarge);
  EXPECT_EQ(add(1, 10, 4, 101), Refusal::kBadPriority);
  EXPECT_EQ(add(1, 10, 4), Refusal::kNone);
  EXPECT_EQ(add(2, 10, 4), Refusal::kQueueFull);
  scheduler.next();
  EXPECT_EQ(add(1, 10, 4), Refusal::kKnownId);
  EXPECT_EQ(add(2, 10, 4), Refusal::kNone);
  EXPECT_THROW(Scheduler({8, 4, 32, 1}, blocks), Error);
}

TEST(Scheduler, DecodesGoOnWhileALongPromptRunsInChunks) {
  KvBlocks blocks(64, 4);
  Scheduler scheduler({4, 8, 200, 9}, blocks);
  scheduler.add({1, {1, 2, 3}, 50, 0, ""});
  scheduler.next();
  scheduler.complete({{1, {7}, false}});
  scheduler.add(
      {2, std::vector<std::int32_t>(100, 5), 4, -100, ""});  // more urgent, and much longer than a step
  for (int i = 0; i < 14; ++i) {
    const Scheduler::Step step = scheduler.next();
    ASSERT_EQ(step.work.size(), 2u);
    EXPECT_EQ(step.work[0].id, 2u);
    EXPECT_EQ(step.work[0].count, 7);
    EXPECT_EQ(step.work[1].id, 1u);
    EXPECT_TRUE(step.work[1].samples);
    scheduler.complete({{1, {7}, false}});
  }
}

TEST(Scheduler, APriorityOvertakesOnlySoMany) {
  KvBlocks blocks(4, 4);
  Scheduler scheduler({1, 8, 16, 100000}, blocks);
  std::uint64_t id = 0;
  scheduler.add({++id, {1}, 1, 0, ""});  // runs now
  scheduler.next();
  const std::uint64_t waits = ++id;
  scheduler.add({waits, {1}, 1, 0, ""});
  scheduler.complete({{1, {7}, true}});
  for (int step = 0; step < 2 * Scheduler::kPatience; ++step) {  // one more urgent request in every step
    scheduler.add({++id, {1}, 1, -1, ""});
    const Scheduler::Step next = scheduler.next();
    ASSERT_EQ(next.work.size(), 1u);
    const std::uint64_t ran = next.work[0].id;
    scheduler.complete({{ran, {7}, true}});
    if (ran == waits) {
      EXPECT_GE(step, Scheduler::kPatience - 2);
      return;
    }
  }
  FAIL() << "it never came to its turn";
}

TEST(Scheduler, NobodyWhoWaitsIsPassed) {
  KvBlocks blocks(4, 4);
  Scheduler scheduler({4, 16, 16, 9}, blocks);
  scheduler.add({1, std::vector<std::int32_t>(9, 1), 4, 0, ""});
  scheduler.next();
  scheduler.complete({{1, {7}, false}});
  scheduler.add({2, std::vector<std::int32_t>(8, 2), 4, 0, ""});  // two blocks, and one is free
  scheduler.add({3, std::vector<std::int32_t>(2, 3), 4, 0, ""});  // one would do
  for (const bool last : {false, true}) {
    const Scheduler::Step step = scheduler.next();
    ASSERT_EQ(step.work.size(), 1u);
    EXPECT_EQ(step.work[0].id, 1u);
    scheduler.complete({{1, {7}, last}});
  }
  const Scheduler::Step step = scheduler.next();
  ASSERT_EQ(step.work.size(), 2u);
  EXPECT_EQ(step.work[0].id, 2u);
  EXPECT_EQ(step.work[1].id, 3u);
}

TEST(Scheduler, ACancelledSequenceFreesItsPagesWithinTheStep) {
  KvBlocks blocks(8, 4);
  Scheduler scheduler({2, 8, 32, 9}, blocks);
  scheduler.add({1, std::vector<std::int32_t>(6, 1), 4, 0, ""});
  scheduler.next();
  scheduler.cancel(1);
  EXPECT_EQ(blocks.free(), 6);  // the step that runs still writes there
  const auto finished = scheduler.complete({{1, {7}, false}});
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].second, Scheduler::Finish::kCancelled);
  EXPECT_EQ(blocks.free(), 8);
  EXPECT_TRUE(scheduler.idle());
}

}  // namespace
}  // namespace llmq::testing

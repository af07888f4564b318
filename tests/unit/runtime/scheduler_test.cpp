// The scheduler driven by random requests, drafts, cancels and answers, with and without a sliding window.
// After every step: no page is leaked or shared without a reference, every position a sequence has computed
// and may look at holds its token, no other has a page, drafts leave nothing behind, budgets are kept; at the
// end everyone has finished.
#include "runtime/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"

namespace llmq {
namespace {

using Refusal = Scheduler::Refusal;
using Request = Scheduler::Request;

// The token that a model with these tokens before it would say: decided by them alone, as row invariance
// promises.
std::int32_t answer(std::span<const std::int32_t> tokens) {
  std::uint32_t hash = 2166136261u;
  for (const std::int32_t token : tokens) hash = (hash ^ static_cast<std::uint32_t>(token)) * 16777619u;
  return static_cast<std::int32_t>(hash >> 8 & 1);
}

// What a position holds: it depends on all tokens up to it, and on whose they are.
std::int32_t contents(std::int32_t before, std::int32_t token) {
  return static_cast<std::int32_t>(
      (static_cast<std::uint32_t>(before) ^ static_cast<std::uint32_t>(token + 7)) * 16777619u);
}
std::int32_t tenant(const Scheduler::Sequence& sequence) { return sequence.request.salt.empty() ? 1 : 2; }

// Runs steps on pages that remember which token was written where, behind which others.
class Machine {
 public:
  static constexpr std::uint64_t kForked = 1'000'000;  // ids of sequences that were forked
  Machine(const SchedulerLimits& limits, std::int32_t count, int size, unsigned seed, KvWindow window = {})
      : limits_(limits),
        random_(seed),
        window_(window),
        blocks_(count, size, true, window),
        scheduler_(limits, blocks_),
        size_(size),
        pages_(static_cast<std::size_t>(count * size), -1),
        host_(static_cast<std::size_t>(limits.swap_pages * size), -1) {}

  Scheduler& scheduler() { return scheduler_; }
  KvBlocks& blocks() { return blocks_; }
  std::int64_t preemptions = 0, drafted = 0, accepted = 0, chunks = 0, reused = 0, cancelled_in_flight = 0;
  std::int64_t copies = 0, passed = 0, restored = 0;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> forked;  // of a sequence, another
  std::map<std::uint64_t, std::pair<Scheduler::Finish, std::vector<std::int32_t>>> finished;

  int pick(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }

  // One forward pass; `cancel` may come while it runs.
  void step(std::optional<std::uint64_t> cancel = {}) {
    propose();
    const Scheduler::Step step = scheduler_.next();
    preemptions += static_cast<std::int64_t>(step.preempted.size());
    check_step(step);
    copies += static_cast<std::int64_t>(step.copies.size());
    swap(step.out, [&](std::int32_t& page, std::int32_t& slot) { slot = page; });
    for (const BlockCopy& copy : step.copies)
      for (int i = 0; i < size_; ++i)
        pages_[static_cast<std::size_t>(copy.to * size_ + i)] =
            pages_[static_cast<std::size_t>(copy.from * size_ + i)];
    swap(step.in, [&](std::int32_t& page, std::int32_t& slot) { page = slot; });
    restored += static_cast<std::int64_t>(step.in.size());
    std::vector<Scheduler::Outcome> outcomes;
    std::map<std::uint64_t, std::vector<std::int32_t>> all;
    for (const Scheduler::Work& work : step.work) {
      run(work, outcomes);
      all[work.id] = scheduler_.sequence(work.id).tokens;
      fork(work);
    }
    if (cancel) {
      cancelled_in_flight += all.count(*cancel);
      scheduler_.cancel(*cancel);
    }
    for (const Scheduler::Outcome& outcome : outcomes)
      all[outcome.id].insert(all[outcome.id].end(), outcome.tokens.begin(), outcome.tokens.end());
    for (const auto& end : scheduler_.complete(outcomes)) finished[end.first] = {end.second, all[end.first]};
    check_pages();
  }

  void check_pages() {
    std::vector<std::int32_t> named(static_cast<std::size_t>(blocks_.total())),
        on_host(static_cast<std::size_t>(limits_.swap_pages));
    std::size_t running = 0;
    for (const auto& entry : scheduler_.live()) {
      const Scheduler::Sequence& one = entry.second;
      running += one.runs;
      for (const std::int32_t slot : one.swapped)
        ASSERT_EQ(++on_host[static_cast<std::size_t>(slot)], 1) << "two have a place on the host";
      const std::int64_t first = first_seen(one.computed), gone = first / size_;
      ASSERT_EQ(static_cast<std::int64_t>(one.table.passed), gone)
          << "the pages that the window has passed, and no others, are given back";
      ASSERT_LE(
          static_cast<std::int64_t>(one.table.blocks.size()) - gone,
          blocks_.most_blocks(static_cast<std::int64_t>(one.request.prompt.size()) + one.request.max_tokens,
                              limits_.max_num_batched_tokens));
      passed += gone;
      for (std::size_t i = 0; i < one.table.blocks.size(); ++i) {
        const std::int32_t block = one.table.blocks[i];
        ASSERT_EQ(block == kNoBlock, static_cast<std::int64_t>(i) < gone);
        if (block == kNoBlock) continue;
        ++named[static_cast<std::size_t>(block)];
        ASSERT_TRUE(one.request.shares || !blocks_.is_published(block))
            << "a prefix is offered that should not be";
      }
      ASSERT_EQ(one.table.length, one.computed) << "drafts or a preemption left pages behind";
      ASSERT_EQ(static_cast<std::int64_t>(one.table.blocks.size()), blocks_.blocks_for(one.computed));
      ASSERT_TRUE(one.runs || one.computed == 0);
      std::int32_t expected = tenant(one);
      for (std::int64_t i = 0; i < one.computed; ++i) {
        expected = contents(expected, one.tokens[static_cast<std::size_t>(i)]);
        if (i < first) continue;
        ASSERT_EQ(page(one.table, i), expected) << "position " << i;
      }
    }
    ASSERT_EQ(scheduler_.swap_pages_used(), std::count(on_host.begin(), on_host.end(), 1))
        << "a place on the host is lost";
    ASSERT_EQ(running, scheduler_.running());
    ASSERT_LE(static_cast<std::int64_t>(running), limits_.max_num_seqs);
    std::int32_t free = 0;
    for (std::int32_t block = 0; block < blocks_.total(); ++block) {
      ASSERT_EQ(blocks_.references(block), named[static_cast<std::size_t>(block)]);
      free += blocks_.references(block) == 0;
    }
    ASSERT_EQ(blocks_.free(), free);
  }

 private:
  template <class Move>
  void swap(const std::vector<PageSwap>& pages, const Move& move) {
    for (const PageSwap& page : pages)
      for (int i = 0; i < size_; ++i)
        move(pages_[static_cast<std::size_t>(page.block * size_ + i)],
             host_[static_cast<std::size_t>(page.slot * size_ + i)]);
  }

  // What the position behind `length` others may touch.
  std::int64_t first_seen(std::int64_t length) const {
    const std::int64_t first =
        window_.positions == 0 ? 0 : std::max<std::int64_t>(0, length - window_.positions + 1);
    return first - first % window_.grain;
  }

  std::int32_t& page(const KvTable& table, std::int64_t i) {
    const std::int32_t block = table.blocks[static_cast<std::size_t>(i / size_)];
    return pages_[static_cast<std::size_t>(block * size_ + i % size_)];
  }

  void propose() {
    for (const auto& entry : scheduler_.live()) {
      if (pick(2) == 0) continue;
      std::vector<std::int32_t> drafts, tokens = entry.second.tokens;
      for (int k = pick(4); k > 0; --k) {
        drafts.push_back(pick(4) == 0 ? 1 - answer(tokens) : answer(tokens));  // three of four are right
        tokens.push_back(drafts.back());
      }
      scheduler_.propose(entry.first, drafts);
    }
  }

  // Now and then another answer to a prompt that was just read. Every sequence says the same, so it is
  // checked like others.
  void fork(const Scheduler::Work& work) {
    const Scheduler::Sequence& one = scheduler_.sequence(work.id);
    if (!work.samples || one.tokens.size() != one.request.prompt.size() || one.request.max_tokens < 2 ||
        pick(6) != 0)
      return;
    for (int i = pick(3); i >= 0; --i) {
      forked.emplace_back(work.id, kForked + forked.size());
      scheduler_.fork(work.id, forked.back().second, answer(one.tokens));
    }
  }

  void check_step(const Scheduler::Step& step) {
    std::int64_t tokens = 0;
    for (const Scheduler::Work& work : step.work) {
      const Scheduler::Sequence& one = scheduler_.sequence(work.id);
      tokens += work.count + work.drafts;
      ASSERT_GE(work.count, 1);
      ASSERT_LE(work.count, one.request.most_rows);
      ASSERT_EQ(work.first, one.computed);
      ASSERT_EQ(work.samples, work.first + work.count == static_cast<std::int64_t>(one.tokens.size()));
      ASSERT_TRUE(work.samples || work.drafts == 0);
      ASSERT_EQ(one.table.length, work.first + work.count + work.drafts);
      ASSERT_LE(one.table.length, limits_.max_model_len);
      ASSERT_EQ(work.drafts, static_cast<std::int64_t>(one.drafts.size()));
      chunks += !work.samples;
      drafted += work.drafts;
    }
    for (const Scheduler::Start& start : step.started) reused += start.cached;
    for (const Scheduler::Start& start : step.started)
      ASSERT_TRUE(start.cached == 0 || scheduler_.sequence(start.id).request.shares);
    for (const Scheduler::Start& start : step.started)
      ASSERT_TRUE(start.restored == 0 || limits_.swap_pages > 0);
    ASSERT_LE(tokens, limits_.max_num_batched_tokens);
    ASSERT_TRUE(!step.work.empty() || scheduler_.idle()) << "nothing runs though something could";
  }

  // Writes the rows of a sequence and says what follows: the drafts as far as they are right, and one token
  // more.
  void run(const Scheduler::Work& work, std::vector<Scheduler::Outcome>& outcomes) {
    const Scheduler::Sequence& one = scheduler_.sequence(work.id);
    std::vector<std::int32_t> tokens = one.tokens;
    tokens.insert(tokens.end(), one.drafts.begin(), one.drafts.end());
    std::int32_t expected = tenant(one);
    for (std::int64_t i = 0; i < work.first; ++i) {
      expected = contents(expected, tokens[static_cast<std::size_t>(i)]);
      if (i < first_seen(work.first)) continue;
      EXPECT_EQ(page(one.table, i), expected)
          << "position " << i << " of a sequence that runs from " << work.first << " on";
    }
    for (std::int64_t i = work.first; i < work.first + work.count + work.drafts; ++i) {
      const std::int32_t block = one.table.blocks[static_cast<std::size_t>(i / size_)];
      EXPECT_EQ(blocks_.references(block), 1) << "a shared page is written";
      EXPECT_FALSE(blocks_.is_published(block)) << "a published page is written";
      page(one.table, i) =
          contents(i == 0 ? tenant(one) : page(one.table, i - 1), tokens[static_cast<std::size_t>(i)]);
    }
    if (!work.samples) return;
    Scheduler::Outcome outcome{work.id, {}, pick(40) == 0};
    std::vector<std::int32_t> before = one.tokens;
    for (const std::int32_t draft : one.drafts) {
      if (draft != answer(before)) break;
      outcome.tokens.push_back(draft);
      before.push_back(draft);
      ++accepted;
    }
    outcome.tokens.push_back(answer(before));
    outcomes.push_back(std::move(outcome));
  }

  SchedulerLimits limits_;
  std::mt19937 random_;
  KvWindow window_;
  KvBlocks blocks_;
  Scheduler scheduler_;
  int size_;
  std::vector<std::int32_t> pages_, host_;
};

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

// 40 seeds of 25,000 steps. The cache is smaller where windows pass, so that it is as scarce.
void drive(bool windowed) {
  std::int64_t steps = 0, preemptions = 0, drafted = 0, accepted = 0, chunks = 0, in_flight = 0, refused = 0,
               forked = 0, copies = 0, cached = 0, passed = 0, restored = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const SchedulerLimits limits{2 + seed % 7, 8 + 5 * (seed % 4), 24 + seed % 17, 6,
                                 seed % 3 == 0 ? 0 : static_cast<std::int32_t>(4 + seed)};
    const int size = 1 + static_cast<int>(seed % 5);
    const auto count = static_cast<std::int32_t>(48 / size + static_cast<int>(seed % 3) * 8 / size);
    const KvWindow window = windowed ? KvWindow{2 + seed % 9, 1 + seed % 4} : KvWindow{};
    Machine machine(limits, windowed ? count * 2 / 3 : count, size, seed, window);
    std::map<std::uint64_t, Request> requests, request_of;
    std::uint64_t id = 0;
    std::size_t forks = 0;
    for (int i = 0; i < 25000; ++i, ++steps) {
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
      if (testing::Test::HasFailure()) FAIL() << "seed " << seed << ", step " << i;
    }
    for (int i = 0; !machine.scheduler().idle(); ++i, ++steps) {
      ASSERT_LT(i, 2000) << "a request does not come to its end";
      machine.step();
    }
    EXPECT_EQ(machine.blocks().free(), machine.blocks().total());
    for (const auto& entry : requests) {
      ASSERT_EQ(machine.finished.count(entry.first), 1u) << "seed " << seed << ": a request was forgotten";
      check_answer(entry.second, machine.finished.at(entry.first).second);
      if (testing::Test::HasFailure()) FAIL() << "seed " << seed << ", request " << entry.first;
    }
    preemptions += machine.preemptions, drafted += machine.drafted, accepted += machine.accepted,
        chunks += machine.chunks;
    in_flight += machine.cancelled_in_flight, forked += static_cast<std::int64_t>(machine.forked.size()),
        copies += machine.copies;
    cached += machine.reused, passed += machine.passed, restored += machine.restored;
  }
  EXPECT_GE(steps, 1'000'000);
  for (const std::int64_t count :
       {preemptions, drafted - accepted, accepted, chunks, in_flight, refused, forked, copies, cached})
    EXPECT_GT(count, 1000);
  EXPECT_EQ(passed > 1000, windowed);
  EXPECT_EQ(restored > 1000, !windowed);
}

TEST(Scheduler, RandomRequestsKeepEveryInvariant) { drive(false); }
TEST(Scheduler, RandomRequestsKeepEveryInvariantWithAWindow) { drive(true); }

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
}  // namespace llmq

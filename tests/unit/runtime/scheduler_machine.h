// A machine of numbers for a scheduler: it runs steps, remembers what every page holds, and checks after each
// that no page is lost, shared without a reference or read where it holds something else. Every page group
// writes contents of its own, so that a page of another group is seen too.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "machine_states.h"
#include "runtime/scheduler.h"

namespace llmq::testing {

using Refusal = Scheduler::Refusal;
using Request = Scheduler::Request;

// The token that a model with these tokens before it would say: decided by them alone, as row invariance
// promises.
inline std::int32_t answer(std::span<const std::int32_t> tokens) {
  std::uint32_t hash = 2166136261u;
  for (const std::int32_t token : tokens) hash = (hash ^ static_cast<std::uint32_t>(token)) * 16777619u;
  return static_cast<std::int32_t>(hash >> 8 & 1);
}

// Before the first position, in the pages of one group.
inline std::int32_t beginning(const Scheduler::Sequence& sequence, std::size_t group) {
  return (sequence.request.salt.empty() ? 1 : 2) + static_cast<std::int32_t>(group) * 100;
}

// Runs steps on pages that remember which token was written where, behind which others.
class Machine {
 public:
  static constexpr std::uint64_t kForked = 1'000'000;  // ids of sequences that were forked
  // Pages of `size` positions, so many in each pool; with `snapshots` every sequence has a state.
  Machine(const SchedulerLimits& limits, const std::vector<std::int32_t>& pools, int size, unsigned seed,
          const std::vector<KvWindow>& windows, const std::vector<std::size_t>& pool_of,
          std::optional<std::int32_t> snapshots)
      : limits_(limits),
        random_(seed),
        windows_(windows),
        blocks_(pools, size, true, windows, pool_of),
        scheduler_(limits, blocks_),
        size_(size),
        pages_(static_cast<std::size_t>(blocks_.total() * size), -1),
        host_(static_cast<std::size_t>(limits.swap_pages * size), -1) {
    if (!snapshots) return;
    blocks_.keep_snapshots(*snapshots, 1 + static_cast<std::int64_t>(seed % 3) * size);
    states_.emplace(*snapshots);
  }

  Scheduler& scheduler() { return scheduler_; }
  KvBlocks& blocks() { return blocks_; }
  const MachineStates& states() const { return *states_; }
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
    if (states_) states_->move(scheduler_, step);
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
      if (states_) states_->run(scheduler_, work, step.saves);
      run(work, outcomes);
      all[work.id] = scheduler_.sequence(work.id).tokens;
      fork(work);
    }
    for (const Scheduler::Outcome& outcome : outcomes)
      if (states_) states_->accept(outcome.id, std::span(outcome.tokens).first(outcome.tokens.size() - 1));
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
      for (const std::int32_t slot : one.swapped_state)
        ASSERT_EQ(++on_host[static_cast<std::size_t>(slot)], 1) << "two have a place on the host";
      if (states_) states_->check(one);
      std::int64_t held = 0;
      for (std::size_t group = 0; group < windows_.size(); ++group) check_table(one, group, named, held);
      ASSERT_LE(held, blocks_.most_blocks(
                          static_cast<std::int64_t>(one.request.prompt.size()) + one.request.max_tokens,
                          limits_.max_num_batched_tokens));
      ASSERT_EQ(one.table.length, one.computed) << "drafts or a preemption left pages behind";
      ASSERT_TRUE(one.runs || one.computed == 0);
    }
    ASSERT_EQ(scheduler_.swap_pages_used(), std::count(on_host.begin(), on_host.end(), 1))
        << "a place on the host is lost";
    ASSERT_EQ(running, scheduler_.running());
    ASSERT_LE(static_cast<std::int64_t>(running), limits_.max_num_seqs);
    std::int32_t free = 0;
    for (std::int32_t block = 0; block < blocks_.total(); ++block) {
      if (blocks_.references(block) != named[static_cast<std::size_t>(block)])
        FAIL() << "page " << block << " has " << blocks_.references(block) << " references and is named "
               << named[static_cast<std::size_t>(block)] << " times";
      free += blocks_.references(block) == 0;
    }
    ASSERT_EQ(blocks_.free(), free);
    if (const auto& kept = blocks_.snapshots()) {
      ASSERT_EQ(kept->offered() + kept->free() + blocks_.places_of_answers(), kept->total())
          << "a place of a snapshot is lost";
    }
  }

 private:
  // Of one sequence in one group; `named`: how many tables name each page, `held`: pages of the sequence.
  void check_table(const Scheduler::Sequence& one, std::size_t group, std::vector<std::int32_t>& named,
                   std::int64_t& held) {
    const PageTable& table = one.table.groups.at(group);
    const std::int64_t first = first_seen(group, one.computed), gone = first / size_;
    ASSERT_EQ(static_cast<std::int64_t>(table.passed), gone)
        << "the pages that the window has passed, and no others, are given back";
    passed += gone;
    held += static_cast<std::int64_t>(table.blocks.size()) - gone;
    for (std::size_t i = 0; i < table.blocks.size(); ++i) {
      const std::int32_t block = table.blocks[i];
      ASSERT_EQ(block == kNoBlock, static_cast<std::int64_t>(i) < gone);
      if (block == kNoBlock) continue;
      ++named[static_cast<std::size_t>(block)];
      ASSERT_TRUE(one.request.shares || !blocks_.is_published(block))
          << "a prefix is offered that should not be";
    }
    ASSERT_EQ(static_cast<std::int64_t>(table.blocks.size()), blocks_.blocks_for(one.computed));
    std::int32_t expected = beginning(one, group);
    for (std::int64_t i = 0; i < one.computed; ++i) {
      expected = contents(expected, one.tokens[static_cast<std::size_t>(i)]);
      if (i < first) continue;
      if (page(table, i) != expected) FAIL() << "position " << i << " of group " << group << " is another's";
    }
  }

  template <class Move>
  void swap(const std::vector<PageSwap>& pages, const Move& move) {
    for (const PageSwap& page : pages)
      for (int i = 0; i < size_; ++i)
        move(pages_[static_cast<std::size_t>(page.block * size_ + i)],
             host_[static_cast<std::size_t>(page.slot * size_ + i)]);
  }

  // What the position behind `length` others may touch.
  std::int64_t first_seen(std::size_t group, std::int64_t length) const {
    const KvWindow& window = windows_[group];
    const std::int64_t first =
        window.positions == 0 ? 0 : std::max<std::int64_t>(0, length - window.positions + 1);
    return first - first % window.grain;
  }

  std::int32_t& page(const PageTable& table, std::int64_t i) {
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
      if (states_ && scheduler_.sequence(forked.back().second).runs)
        states_->fork(work.id, forked.back().second);
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
    for (std::size_t group = 0; group < windows_.size(); ++group) write(work, one, group, tokens);
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

  // Reads what the rows of one group look at, and writes the rows.
  void write(const Scheduler::Work& work, const Scheduler::Sequence& one, std::size_t group,
             const std::vector<std::int32_t>& tokens) {
    const PageTable& table = one.table.groups[group];
    std::int32_t expected = beginning(one, group);
    for (std::int64_t i = 0; i < work.first; ++i) {
      expected = contents(expected, tokens[static_cast<std::size_t>(i)]);
      if (i < first_seen(group, work.first)) continue;
      if (page(table, i) != expected)
        ADD_FAILURE() << "position " << i << " of a sequence that runs from " << work.first
                      << " on is another's";
    }
    for (std::int64_t i = work.first; i < work.first + work.count + work.drafts; ++i) {
      const std::int32_t block = table.blocks[static_cast<std::size_t>(i / size_)];
      EXPECT_EQ(blocks_.references(block), 1) << "a shared page is written";
      EXPECT_FALSE(blocks_.is_published(block)) << "a published page is written";
      page(table, i) =
          contents(i == 0 ? beginning(one, group) : page(table, i - 1), tokens[static_cast<std::size_t>(i)]);
    }
  }

  SchedulerLimits limits_;
  std::mt19937 random_;
  std::vector<KvWindow> windows_;
  KvBlocks blocks_;
  Scheduler scheduler_;
  int size_;
  std::vector<std::int32_t> pages_, host_;
  std::optional<MachineStates> states_;
};

}  // namespace llmq::testing

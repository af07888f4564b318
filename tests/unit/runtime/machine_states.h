// Recurrent states of numbers for the machine of scheduler_machine.h: what a state is says which tokens it
// has seen, so one of another sequence, of another length or from a place filled anew is seen at once.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "runtime/scheduler.h"

namespace llmq::testing {

// What a position holds: it depends on all tokens up to it, and on whose they are.
inline std::int32_t contents(std::int32_t before, std::int32_t token) {
  return static_cast<std::int32_t>(
      (static_cast<std::uint32_t>(before) ^ static_cast<std::uint32_t>(token + 7)) * 16777619u);
}

class MachineStates {
 public:
  std::int64_t from_snapshots = 0, from_host = 0, of_answers = 0;

  explicit MachineStates(std::int32_t snapshots) : snapshots_(static_cast<std::size_t>(snapshots)) {}

  // Before the pages move.
  void move(const Scheduler& scheduler, const Scheduler::Step& step) {
    for (const Scheduler::Start& start : step.started) {
      const Scheduler::Sequence& one = scheduler.sequence(start.id);
      State& own = states_[start.id] = {0, beginning(one)};
      if (start.restored > 0)
        own = host_.at(one.swapped_state.front()), ++from_host;
      else if (start.snapshot != kNoSnapshot)
        own = snapshots_.at(static_cast<std::size_t>(start.snapshot)), ++from_snapshots;
      ASSERT_EQ(own.length, start.cached + start.restored);
      ASSERT_EQ(own.seen, seen(one, own.length)) << "a sequence begins with the state of another";
    }
    for (const std::uint64_t id : step.states_out) {
      const Scheduler::Sequence& one = scheduler.sequence(id);
      ASSERT_EQ(one.swapped_length, states_.at(id).length);
      host_[one.swapped_state.front()] = states_.at(id);
    }
    for (const std::uint64_t id : step.preempted) states_.erase(id);
  }

  void run(const Scheduler& scheduler, const Scheduler::Work& work, const std::vector<SnapshotPlace>& saves) {
    const Scheduler::Sequence& one = scheduler.sequence(work.id);
    State& own = states_.at(work.id);
    ASSERT_EQ(own.length, work.first) << "a state is not where its sequence is";
    while (own.length < work.first + work.count) {
      own.seen = contents(own.seen, one.tokens[static_cast<std::size_t>(own.length++)]);
      for (const SnapshotPlace& place : saves)
        if (place.sequence == work.id && place.position == own.length) {
          snapshots_.at(static_cast<std::size_t>(place.slot)) = own;
          of_answers += place.of_answer;
        }
    }
  }
  // Drafts that were right.
  void accept(std::uint64_t id, std::span<const std::int32_t> tokens) {
    State& own = states_.at(id);
    for (const std::int32_t token : tokens) own.seen = contents(own.seen, token), ++own.length;
  }
  void fork(std::uint64_t id, std::uint64_t other) { states_[other] = states_.at(id); }
  void check(const Scheduler::Sequence& one) const {
    if (!one.runs) return;
    ASSERT_EQ(states_.at(one.request.id).length, one.computed);
    ASSERT_EQ(states_.at(one.request.id).seen, seen(one, one.computed));
  }

 private:
  struct State {
    std::int64_t length = -1;
    std::int32_t seen = 0;
  };
  static std::int32_t beginning(const Scheduler::Sequence& one) { return one.request.salt.empty() ? 51 : 52; }
  static std::int32_t seen(const Scheduler::Sequence& one, std::int64_t length) {
    std::int32_t all = beginning(one);
    for (std::int64_t i = 0; i < length; ++i) all = contents(all, one.tokens[static_cast<std::size_t>(i)]);
    return all;
  }

  std::map<std::uint64_t, State> states_;
  std::map<std::int32_t, State> host_;
  std::vector<State> snapshots_;
};

}  // namespace llmq::testing

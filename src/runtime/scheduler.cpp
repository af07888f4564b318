#include "runtime/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace llmq {

Scheduler::Scheduler(const SchedulerLimits& limits, KvBlocks& blocks) : limits_(limits), blocks_(blocks) {
  if (limits.max_num_seqs < 1 || limits.max_num_batched_tokens < limits.max_num_seqs)
    fail(ErrorKind::kUsage, {fmt::format("{} tokens in a step do not serve {} sequences",
                                         limits.max_num_batched_tokens, limits.max_num_seqs),
                             {},
                             "--max-num-batched-tokens",
                             "give at least one token for each sequence of --max-num-seqs"});
  if (limits.max_model_len < 2 || limits.max_waiting < 0)
    fail(ErrorKind::kUsage, {fmt::format("a context of {} tokens holds no answer", limits.max_model_len),
                             {},
                             "--max-model-len",
                             {}});
  for (std::int32_t slot = limits.swap_pages; slot > 0; --slot) free_slots_.push_back(slot - 1);
}

Scheduler::Refusal Scheduler::add(Request request) {
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  if (prompt == 0 || request.max_tokens < 1 || request.most_rows < 1) return Refusal::kEmptyPrompt;
  if (prompt >= limits_.max_model_len) return Refusal::kTooLong;
  request.max_tokens = std::min(request.max_tokens, limits_.max_model_len - prompt);
  const std::int64_t most = prompt + request.max_tokens - 1;  // the last token is never run
  if (!blocks_.holds(most, limits_.max_num_batched_tokens)) return Refusal::kTooLarge;
  if (request.priority < -kPriorities || request.priority > kPriorities) return Refusal::kBadPriority;
  if (live_.count(request.id) != 0) return Refusal::kKnownId;
  if (static_cast<std::int64_t>(waiting_.size()) >= limits_.max_waiting) return Refusal::kQueueFull;
  Sequence sequence;
  sequence.urgency = steps_ + request.priority * kPatience;
  sequence.tokens = request.prompt;
  sequence.table = blocks_.open(request.salt, request.shares);
  sequence.request = std::move(request);
  waiting_.insert(place_of(sequence));
  const std::uint64_t id = sequence.request.id;
  live_.emplace(id, std::move(sequence));
  return Refusal::kNone;
}

void Scheduler::cancel(std::uint64_t id) {
  const auto found = live_.find(id);
  if (found == live_.end()) return;
  const bool in_flight = stepping_ && std::any_of(step_.work.begin(), step_.work.end(),
                                                  [&](const Work& work) { return work.id == id; });
  if (in_flight)
    found->second.cancelled = true;  // the running step still writes its pages
  else
    erase(id);
}

void Scheduler::propose(std::uint64_t id, std::vector<std::int32_t> drafts) {
  const auto found = live_.find(id);
  if (found == live_.end() || stepping_) return;
  found->second.drafts = std::move(drafts);
}

// All pages; what they hold may be found again.
void Scheduler::give_back(Sequence& sequence) {
  blocks_.publish(sequence.table,
                  std::span(sequence.tokens).first(static_cast<std::size_t>(sequence.computed)));
  if (sequence.of_answer.slot != kNoSnapshot)
    blocks_.offer(sequence.table, std::exchange(sequence.of_answer, {}));
  blocks_.close(sequence.table);
  sequence.most_computed = std::max(sequence.most_computed, sequence.computed);
  sequence.computed = 0;
}

void Scheduler::erase(std::uint64_t id) {
  Sequence& sequence = live_.at(id);
  give_back(sequence);
  forget_swapped(sequence);
  (sequence.runs ? running_ : waiting_).erase(place_of(sequence));
  live_.erase(id);
}

// Copies of its whole pages, the first ones first, as many as there is room for. Where a window passes or a
// state goes along, only all of them are of use, with the page that is part used: what the next position
// looks at, group by group.
void Scheduler::swap_out(Sequence& sequence, Step& step) {
  if (!sequence.swapped.empty()) return;  // it was pushed out as it started: they are there still
  const auto next_slot = [&] {
    const std::int32_t slot = free_slots_.back();
    free_slots_.pop_back();
    return slot;
  };
  const auto of_state = static_cast<std::size_t>(limits_.swap_pages_of_state);
  const bool at_once = of_state > 0 || blocks_.has_windows();
  auto end = static_cast<std::size_t>(sequence.computed / blocks_.block_size());
  if (at_once) {
    end = static_cast<std::size_t>(blocks_.blocks_for(sequence.computed));
    std::size_t all = of_state;
    for (const PageTable& own : sequence.table.groups) all += end - own.passed;
    if (sequence.computed < std::max<std::int64_t>(1, limits_.fewest_swapped) || all > free_slots_.size())
      return;
    while (sequence.swapped_state.size() < of_state) sequence.swapped_state.push_back(next_slot());
    if (of_state > 0) step.states_out.push_back(sequence.request.id);
  }
  for (const PageTable& own : sequence.table.groups)
    for (std::size_t i = own.passed; i < end && !free_slots_.empty(); ++i) {
      sequence.swapped.push_back(next_slot());
      step.out.push_back({own.blocks[i], sequence.swapped.back()});
    }
  sequence.swapped_length =
      at_once ? sequence.computed : static_cast<std::int64_t>(sequence.swapped.size()) * blocks_.block_size();
}

// Behind what was found of it, where there is room for what its windows look at. The places on the host are
// its own until the step has run.
void Scheduler::swap_in(Sequence& sequence, Step& step) {
  const std::int64_t length = sequence.swapped_length;
  const auto found = static_cast<std::size_t>(sequence.computed / blocks_.block_size());
  if (length <= sequence.computed || !blocks_.reserve_seen(sequence.table, length)) return;
  auto slot = sequence.swapped.begin();
  for (const PageTable& own : sequence.table.groups)
    for (std::size_t i = own.passed; i < own.blocks.size(); ++i, ++slot)
      if (i >= found) step.in.push_back({own.blocks[i], *slot});
  sequence.computed = length;
}

void Scheduler::forget_swapped(Sequence& sequence) {
  for (std::vector<std::int32_t>* const slots : {&sequence.swapped, &sequence.swapped_state}) {
    free_slots_.insert(free_slots_.end(), slots->begin(), slots->end());
    slots->clear();
  }
  sequence.swapped_length = 0;
}

void Scheduler::preempt(Sequence& sequence, Step& step) {
  swap_out(sequence, step);
  give_back(sequence);
  sequence.drafts.clear();
  sequence.runs = false;
  running_.erase(place_of(sequence));
  waiting_.insert(place_of(sequence));
  step.preempted.push_back(sequence.request.id);
}

// Pushes out the least urgent running sequence, if it is less urgent than `place`. It cannot be in this step
// yet, because the step is filled in the order of urgency.
bool Scheduler::preempt_less_urgent(const Place& place, Step& step) {
  if (running_.empty() || *running_.rbegin() <= place) return false;
  preempt(live_.at(running_.rbegin()->second), step);
  return true;
}

std::int64_t Scheduler::decoding_behind(const Place& place) const {
  return std::count_if(running_.upper_bound(place), running_.end(),
                       [&](const Place& other) { return pending(live_.at(other.second)) == 1; });
}

// Work for a running sequence: as many of its tokens as budget and pages allow.
void Scheduler::schedule(Sequence& sequence, std::int64_t& budget, Step& step) {
  const Place place = place_of(sequence);
  const std::int64_t spare = budget - (pending(sequence) > 1 ? decoding_behind(place) : 0);
  const std::int64_t count = std::min({pending(sequence), spare, sequence.request.most_rows});
  if (count < 1) return;  // its turn comes in a later step
  const bool samples = count == pending(sequence);
  const auto size = static_cast<std::int64_t>(sequence.tokens.size());
  const std::int64_t room = longest(sequence) - size - 1;
  std::int64_t drafts = 0;
  if (samples) {
    // A token for everyone behind, and for one that waits.
    const std::int64_t behind =
        std::distance(running_.upper_bound(place), running_.end()) + (waiting_.empty() ? 0 : 1);
    const std::int64_t spare_for_drafts = budget - count - behind;
    drafts = std::clamp<std::int64_t>(
        std::min({static_cast<std::int64_t>(sequence.drafts.size()), room, spare_for_drafts}), 0, INT32_MAX);
    // Only pages that nobody needs.
    if (!blocks_.reserve(sequence.table, sequence.computed + count + drafts, step.copies)) drafts = 0;
  }
  sequence.drafts.resize(static_cast<std::size_t>(drafts));
  while (!blocks_.reserve(sequence.table, sequence.computed + count, step.copies))
    if (!preempt_less_urgent(place, step)) {
      preempt(sequence, step);
      return;
    }
  step.work.push_back({sequence.request.id, sequence.computed, count, drafts, samples});
  const auto prompt = static_cast<std::int64_t>(sequence.request.prompt.size());
  const std::int64_t first = sequence.computed, end = first + count;
  blocks_.take_places(sequence.table, place.second, prompt, first, end, step.saves);
  blocks_.take_place_of_answer(sequence.table, sequence.of_answer, place.second, prompt, first, end,
                               step.saves);
  budget -= count + drafts;
}

void Scheduler::leave_out(std::size_t save) {
  blocks_.drop(step_.saves.at(save));
  step_.saves.erase(step_.saves.begin() + static_cast<std::ptrdiff_t>(save));
}

// For all it may become, so that a step of a running sequence allocates nothing.
void Scheduler::make_room(Sequence& sequence) const {
  sequence.tokens.reserve(static_cast<std::size_t>(longest(sequence)));
  for (PageTable& own : sequence.table.groups)
    own.blocks.reserve(static_cast<std::size_t>(blocks_.blocks_for(longest(sequence))));
}

// Makes a waiting sequence run: it needs a place among the running and pages for all its tokens.
bool Scheduler::start(Sequence& sequence, Step& step) {
  const Place place = place_of(sequence);
  while (static_cast<std::int64_t>(running_.size()) >= limits_.max_num_seqs)
    if (!preempt_less_urgent(place, step)) return false;
  const auto size = static_cast<std::int64_t>(sequence.tokens.size());
  sequence.computed = blocks_.take_prefix(sequence.table, sequence.tokens);
  while (!blocks_.has_room(sequence.table, size, limits_.max_num_batched_tokens))
    if (!preempt_less_urgent(place, step)) {
      blocks_.close(sequence.table);
      sequence.computed = 0;
      return false;
    }
  waiting_.erase(place);
  running_.insert(place);
  sequence.runs = true;
  const std::int64_t cached = sequence.computed;
  const std::int32_t snapshot = blocks_.snapshot_of(sequence.table);
  swap_in(sequence, step);
  step.started.push_back({sequence.request.id, size, cached, sequence.computed - cached,
                          std::max<std::int64_t>(0, sequence.most_computed - sequence.computed), snapshot});
  make_room(sequence);
  return true;
}

// What a step left of a sequence: its answer keeps the last, others may go on from the rest, if it was not
// cancelled.
void Scheduler::settle(std::span<const SnapshotPlace> places, Sequence& sequence) {
  for (const SnapshotPlace& place : places)
    if (place.of_answer)
      sequence.of_answer = place;
    else if (sequence.cancelled)
      blocks_.drop(place);
    else
      blocks_.offer(sequence.table, place);
}

const Scheduler::Step& Scheduler::next() {
  if (stepping_) fail(ErrorKind::kInternal, "a step is asked for while one runs");
  Step& step = step_;
  for (const Start& start : step.started)  // what came back has no need of the host
    if (const auto found = live_.find(start.id); found != live_.end() && found->second.runs)
      forget_swapped(found->second);
  step.work.clear();
  step.out.clear();
  step.copies.clear();
  step.in.clear();
  step.saves.clear();
  step.states_out.clear();
  step.preempted.clear();
  step.started.clear();
  ++steps_;
  std::int64_t budget = limits_.max_num_batched_tokens;
  // Both queues are walked together in the order of urgency. A sequence that is pushed out here was behind
  // all that went before, so what waited first still comes first in the next step.
  Place at{INT64_MIN, 0};
  bool starting = true;
  while (budget > 0) {
    const auto run = running_.upper_bound(at);
    const auto wait = waiting_.upper_bound(at);
    const bool waits = starting && wait != waiting_.end() && (run == running_.end() || *wait < *run);
    if (!waits && run == running_.end()) break;
    at = waits ? *wait : *run;
    Sequence& sequence = live_.at(at.second);
    if (waits && !start(sequence, step)) {
      starting = false;
      continue;
    }
    schedule(sequence, budget, step);
    // Where pages were short nobody else starts: it would be pushed out again.
    if (!step.preempted.empty()) starting = false;
  }
  stepping_ = !step.work.empty();
  return step;
}

void Scheduler::fork(std::uint64_t id, std::uint64_t other, std::int32_t token) {
  const auto work =
      std::find_if(step_.work.begin(), step_.work.end(), [&](const Work& w) { return w.id == id; });
  if (!stepping_ || work == step_.work.end() || !work->samples || live_.count(other) != 0)
    fail(ErrorKind::kInternal, "sequence {} cannot be forked to {} now", id, other);
  const Sequence& from = live_.at(id);
  Sequence sequence = from;
  sequence.request.id = other;
  sequence.tokens.push_back(token);
  sequence.drafts.clear();
  sequence.swapped.clear();
  sequence.swapped_state.clear();
  sequence.swapped_length = 0;
  sequence.of_answer = {};
  sequence.computed = work->first + work->count;
  sequence.table = blocks_.fork(from.table);
  blocks_.truncate(sequence.table, sequence.computed);
  blocks_.release_passed(sequence.table);
  sequence.runs = static_cast<std::int64_t>(running_.size()) < limits_.max_num_seqs;
  if (!sequence.runs) {  // it starts later, and finds the prompt if it is still there
    blocks_.close(sequence.table);
    sequence.computed = 0;
  } else {
    make_room(sequence);
  }
  (sequence.runs ? running_ : waiting_).insert(place_of(sequence));
  live_.emplace(other, std::move(sequence));
}

std::vector<std::pair<std::uint64_t, Scheduler::Finish>> Scheduler::complete(
    const std::vector<Outcome>& outcomes) {
  std::vector<std::pair<std::uint64_t, Finish>> finished;
  auto outcome = outcomes.begin();
  auto save = step_.saves.begin();
  for (const Work& work : step_.work) {
    Sequence& sequence = live_.at(work.id);
    const auto saved = save;
    while (save != step_.saves.end() && save->sequence == work.id) ++save;
    const bool has_outcome = outcome != outcomes.end() && outcome->id == work.id;
    if (sequence.cancelled) {
      if (has_outcome) ++outcome;
      finished.emplace_back(work.id, Finish::kCancelled);
      settle({saved, save}, sequence);
      blocks_.truncate(sequence.table, sequence.computed);  // this step's rows are not looked at
      erase(work.id);
      continue;
    }
    sequence.computed += work.count;
    bool ends = false, stopped = false;
    if (work.samples) {
      const std::int64_t given = has_outcome ? static_cast<std::int64_t>(outcome->tokens.size()) : 0;
      if (given < 1 || given > work.drafts + 1)
        fail(ErrorKind::kInternal, "a sequence with {} drafts got {} tokens", work.drafts, given);
      sequence.tokens.insert(sequence.tokens.end(), outcome->tokens.begin(), outcome->tokens.end());
      sequence.computed += given - 1;  // the accepted drafts; the last token has no page yet
      sequence.drafts.clear();
      stopped = outcome->stop;
      ++outcome;
      const auto size = static_cast<std::int64_t>(sequence.tokens.size());
      ends = stopped ||
             size - static_cast<std::int64_t>(sequence.request.prompt.size()) >= sequence.request.max_tokens;
    }
    blocks_.truncate(sequence.table, sequence.computed);  // what was reserved for drafts
    if (work.first < static_cast<std::int64_t>(sequence.request.prompt.size()))
      blocks_.publish(sequence.table,
                      std::span(sequence.tokens).first(static_cast<std::size_t>(sequence.computed)));
    settle({saved, save}, sequence);
    blocks_.release_passed(sequence.table);
    if (!ends) continue;
    finished.emplace_back(work.id, stopped ? Finish::kStop : Finish::kLength);
    erase(work.id);
  }
  stepping_ = false;
  return finished;
}

}  // namespace llmq

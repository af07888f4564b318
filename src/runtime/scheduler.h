// Which tokens of which requests run in the next forward pass: iteration-level ("continuous") batching as a
// state machine over numbers. No thread, clock, model or backend; the caller runs what next() decides and
// reports to complete().
//
//   * There are no phases. A sequence has tokens (prompt and what was generated) and a number of positions
//     computed; each step runs some of the difference, as much as the budget of max_num_batched_tokens
//     allows. A prompt longer than that runs in chunks; a budget of one token is kept for every sequence that
//     is generating, so chunks never stop them.
//   * Urgency is fixed when a request arrives: step of arrival + priority x kPatience, the lower the sooner.
//     A request of a better priority overtakes those that came up to that many steps before, never more: so
//     everyone's turn comes.
//   * Sequences get pages in the order of urgency. When none is free the least urgent running sequence gives
//     back all of its pages and waits; what it had is computed again (its published blocks may still be
//     there). The most urgent sequence can always go on, because a request that does not fit alone is refused
//     when it comes.
//   * Pages that a sliding window has passed are given back as soon as the step has run, those of each page
//     group (kv_blocks.h) by its own window.
//   * A waiting sequence starts when there are pages for all its tokens (at once), and none that waits is
//     passed by a less urgent one.
//   * Draft tokens to be verified take pages and budget that nobody needs, and never push anyone out. What
//     was not accepted is given back in complete(), and all of it when the sequence is pushed out.
//   * cancel() frees pages at once, or in complete() where the sequence is in the step that runs.
//   * Where there is host memory for pages (swap_pages), a sequence that is pushed out leaves copies of its
//     whole pages there, as many as there is room for, and takes them back when it starts again: what it
//     finds published comes first, what is behind the copies is computed again. Where a window passes it
//     leaves all that the next position looks at, or nothing.
//   * Recurrent states (kv_blocks.h, keep_snapshots) are named where their pages are: which snapshot a start
//     goes on from, where a step leaves some, whose state goes to the host or comes back. A state is good for
//     one length alone, so such a sequence goes to the host whole, its part-used page too, or not at all.
//   * fork() makes another answer to the same prompt: it has the same pages until one of the two writes.
//   * What a prompt fills is offered to others as soon as it is computed, what an answer fills when its
//     sequence gives its pages back: a step that only decodes hashes nothing. It allocates nothing either.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/kv_blocks.h"

namespace llmq {

struct SchedulerLimits {
  std::int64_t max_num_seqs = 128;             // running at once
  std::int64_t max_num_batched_tokens = 2048;  // in one step; at least max_num_seqs
  std::int64_t max_model_len = 4096;           // prompt and answer
  std::int64_t max_waiting = 1024;             // beyond that, requests are refused
  // of host memory, for what is pushed out
  std::int32_t swap_pages = 0;
  // of these, what a recurrent state takes, if there is one; and the fewest positions that are worth it
  std::int32_t swap_pages_of_state = 0;
  std::int64_t fewest_swapped = 0;
};

class Scheduler {
 public:
  static constexpr std::int64_t kPatience = 256;  // steps by which one level of priority comes before
  static constexpr int kPriorities = 100;         // -100 ... 100

  struct Request {
    std::uint64_t id = 0;
    std::vector<std::int32_t> prompt;
    std::int64_t max_tokens = 16;
    int priority = 0;                    // lower is sooner
    std::string salt;                    // of the prefix cache
    bool shares = true;                  // prefixes with others; false: its whole prompt is computed
    std::int64_t most_rows = INT64_MAX;  // of one step, its drafts aside; at least 1
  };

  Scheduler(const SchedulerLimits& limits, KvBlocks& blocks);

  enum class Refusal { kNone, kEmptyPrompt, kTooLong, kTooLarge, kQueueFull, kBadPriority, kKnownId };
  Refusal add(Request request);
  void cancel(std::uint64_t id);  // unknown ids are finished ones: nothing happens
  // Tokens that may follow those there are: verified in the next step in which this sequence runs, if that
  // reaches its last token, and else forgotten.
  void propose(std::uint64_t id, std::vector<std::int32_t> drafts);

  // Of one sequence: tokens [first, first + count) of its own and `drafts` behind them run on top of its
  // table.
  struct Work {
    std::uint64_t id;
    std::int64_t first, count, drafts;
    bool samples;  // a token follows from the last row
  };
  // A sequence that begins, or begins again: of its tokens, `cached` were found, `restored` come back from
  // the host, and `again` had been computed before and are not there. Its recurrent state is that of
  // `snapshot`, where nothing was restored.
  struct Start {
    std::uint64_t id;
    std::int64_t tokens, cached, restored, again;
    std::int32_t snapshot = kNoSnapshot;
  };
  struct Step {
    std::vector<Work> work;  // the most urgent first
    // Before the work, in this order: pages to the host, copies, pages from the host.
    std::vector<PageSwap> out;
    std::vector<BlockCopy> copies;
    std::vector<PageSwap> in;
    std::vector<SnapshotPlace> saves;  // of the sequences in `work`, in their order: filled while it runs
    std::vector<std::uint64_t> states_out;  // of `preempted`, if their states go to the host
    std::vector<std::uint64_t> preempted;
    std::vector<Start> started;  // may hold one that is preempted in the same step
  };
  // The next step, valid until the one after it; empty when there is nothing to do. The step before must be
  // complete.
  const Step& next();

  // What became of a sequence that sampled: the drafts that were accepted and one token more. `stop`: it ends
  // here.
  struct Outcome {
    std::uint64_t id;
    std::vector<std::int32_t> tokens;
    bool stop = false;
  };
  enum class Finish { kStop, kLength, kCancelled };
  // Another answer to the prompt of `id`, whose last row runs in this step: a sequence `other` of the same
  // request with the same tokens and `token` behind them. Between next() and complete().
  void fork(std::uint64_t id, std::uint64_t other, std::int32_t token);
  // Nothing is kept at this place of the step that next() returned, for want of memory. Before it runs.
  void leave_out(std::size_t save);
  // Of the step that next() returned: an outcome for every sequence that samples, in the order of its work.
  std::vector<std::pair<std::uint64_t, Finish>> complete(const std::vector<Outcome>& outcomes);

  std::size_t running() const { return running_.size(); }
  std::size_t waiting() const { return waiting_.size(); }
  bool idle() const { return live_.empty(); }
  std::int64_t swap_pages_used() const {
    return limits_.swap_pages - static_cast<std::int64_t>(free_slots_.size());
  }

  struct Sequence {
    Request request;
    std::int64_t urgency = 0;
    std::vector<std::int32_t> tokens, drafts;
    std::int64_t computed = 0, most_computed = 0;  // now; before a preemption
    KvTable table;
    // where on the host its first pages are: of one that waits, or starts in this step
    std::vector<std::int32_t> swapped;
    // where its recurrent state is, and so many positions are there in all
    std::vector<std::int32_t> swapped_state;
    std::int64_t swapped_length = 0;
    SnapshotPlace of_answer;  // what its answer left last
    bool runs = false, cancelled = false;
  };
  const Sequence& sequence(std::uint64_t id) const { return live_.at(id); }
  const std::map<std::uint64_t, Sequence>& live() const { return live_; }

 private:
  using Place = std::pair<std::int64_t, std::uint64_t>;  // urgency, id: a total order
  static Place place_of(const Sequence& sequence) { return {sequence.urgency, sequence.request.id}; }

  std::int64_t pending(const Sequence& s) const {
    return static_cast<std::int64_t>(s.tokens.size()) - s.computed;
  }
  static std::int64_t longest(const Sequence& s) {
    return static_cast<std::int64_t>(s.request.prompt.size()) + s.request.max_tokens;
  }
  void make_room(Sequence& sequence) const;
  std::int64_t decoding_behind(const Place& place) const;
  void schedule(Sequence& sequence, std::int64_t& budget, Step& step);
  bool start(Sequence& sequence, Step& step);
  void preempt(Sequence& sequence, Step& step);
  bool preempt_less_urgent(const Place& place, Step& step);
  void give_back(Sequence& sequence);
  void swap_out(Sequence& sequence, Step& step);
  void swap_in(Sequence& sequence, Step& step);
  void forget_swapped(Sequence& sequence);
  void settle(std::span<const SnapshotPlace> places, Sequence& sequence);
  void erase(std::uint64_t id);

  SchedulerLimits limits_;
  KvBlocks& blocks_;
  std::map<std::uint64_t, Sequence> live_;
  std::set<Place> running_, waiting_;
  std::vector<std::int32_t> free_slots_;  // of the host's pages
  Step step_;                             // that runs, or ran last
  std::int64_t steps_ = 0;
  bool stepping_ = false;
};

}  // namespace llmq

// Recurrent states of the answers that run (docs/adr/0023-recurrent-state.md): where each begins, what a step
// leaves of it for others, what is taken back of it.
#include "runtime/serving_state.h"

namespace llmq {

// Before the step: what starts goes on from a snapshot or from the host, what is pushed out goes to the host
// if it has places there. One may do both.
void ServingEngine::State::move_states(const Scheduler::Step& step) {
  if (engine.spec().state_bytes() == 0) return;
  KvCache& cache = engine.cache();
  for (const Scheduler::Start& start : step.started) {
    Answer& answer = answers.at(start.id);
    if (!answer.state) answer.state = engine.new_state();
    if (start.restored > 0)
      cache.swap_in(*answer.state, scheduler.sequence(start.id).swapped_state, start.cached + start.restored);
    else if (start.snapshot != kNoSnapshot)
      answer.state->copy_from(engine.snapshot(start.snapshot));
  }
  for (const std::uint64_t sequence : step.states_out)
    cache.swap_out(*answers.at(sequence).state, scheduler.sequence(sequence).swapped_state);
  for (const std::uint64_t sequence : step.preempted) answers.at(sequence).state.reset();
}

// To the steps of the engine: the state of each answer, where it is to be left, and which rows are guesses.
void ServingEngine::State::give_states(const Scheduler::Step& step) {
  if (engine.spec().state_bytes() == 0) return;
  saves.clear();
  for (std::size_t i = 0; i < step.saves.size();)
    if (SequenceState* const snapshot = engine.snapshot_with_room(step.saves[i].slot))
      saves.push_back({step.saves[i++].position, snapshot});
    else
      scheduler.leave_out(i);
  std::size_t next = 0;
  for (std::size_t i = 0; i < step.work.size(); ++i) {
    const Scheduler::Work& work = step.work[i];
    Answer& answer = answers.at(work.id);
    if (work.drafts > 0) answer.state->guess_from(work.first + work.count, work.drafts);
    const std::size_t first = next;
    while (next < saves.size() && step.saves[next].sequence == work.id) ++next;
    steps[i].state = answer.state.get();
    steps[i].saves = std::span(saves).subspan(first, next - first);
  }
}

// Behind the last of its tokens, which no step has run yet.
void ServingEngine::State::take_back(const Scheduler::Work& work, Answer& answer, std::size_t accepted) {
  if (work.drafts > 0 && answer.state)
    engine.take_back(*answer.state, work.first + work.count + static_cast<std::int64_t>(accepted));
}

// Another answer to the prompt whose last row has just run, with guesses behind it or without.
void ServingEngine::State::fork_state(const Scheduler::Work& work, const Answer& from, Answer& to) {
  if (!from.state) return;
  to.state = engine.new_state();
  to.state->copy_from(work.drafts > 0 ? from.state->before_guesses() : *from.state);
}

}  // namespace llmq

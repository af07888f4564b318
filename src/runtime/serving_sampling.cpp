// From the rows of a step to tokens: prompts are scored, and every row that is followed by a token is drawn
// from.
#include <algorithm>
#include <utility>

#include "device/token_drawer.h"
#include "runtime/serving_state.h"

namespace llmq {
namespace {

constexpr std::int64_t kTileBytes = 64 << 20;  // of logits at once

}  // namespace

// Log probabilities of the tokens of prompts that asked for them, from the rows before each; eval-ppl scores
// by the same product and sum.
void ServingEngine::State::score_prompts(const Scheduler::Step& step, const Buffer& normed) {
  const TensorView all = normed.view(activation_dtype(engine.options().compute),
                                     {static_cast<std::int64_t>(ids.size()), engine.spec().hidden_size});
  const std::int64_t tile = std::max<std::int64_t>(1, kTileBytes / (engine.spec().vocab_size * 4));
  std::vector<RowScore> scores;
  for (std::size_t i = 0; i < step.work.size(); ++i) {
    const Scheduler::Work& work = step.work[i];
    Answer& answer = answers.at(work.id);
    const GenerationRequest& request = answer.request();
    const std::int64_t end =
        std::min(work.first + work.count, static_cast<std::int64_t>(request.prompt.size()) - 1);
    if (!request.prompt_logprobs || answer.drawn() > 0) continue;
    answer.prompt_logprobs.resize(request.prompt.size() - 1);
    for (std::int64_t at = work.first; at < end; at += tile) {
      const auto count = static_cast<std::size_t>(std::min(tile, end - at));
      const std::span<const std::int32_t> targets(request.prompt.data() + at + 1, count);
      scores.resize(count);
      const TensorView logits = engine.logits(all.row_slice(
          static_cast<std::int64_t>(offsets[i]) + at - work.first, static_cast<std::int64_t>(count)));
      engine.backend().score_rows(logits, targets, scores);
      const std::span<const float> values =
          *request.prompt_logprobs > 0 ? engine.on_host(logits) : std::span<float>();
      for (std::size_t row = 0; row < count; ++row) {
        TokenLogprobs& scored = answer.prompt_logprobs[static_cast<std::size_t>(at) + row];
        scored.chosen = {targets[row], scores[row].log_prob};
        if (values.empty()) continue;
        const auto width = static_cast<std::size_t>(engine.spec().vocab_size);
        const std::span<const float> own = values.subspan(row * width, width);
        scored.likeliest = likeliest_logprobs(
            own, static_cast<double>(own[static_cast<std::size_t>(targets[row])]) - scores[row].log_prob,
            *request.prompt_logprobs);
      }
    }
  }
}

// Rows that are followed by a token: drawn where the logits are, if the device can and nothing changes them
// first.
void ServingEngine::State::sample(const Scheduler::Step& step, const Buffer& normed) {
  const bool can_draw = engine.backend().extensions().token_drawer != nullptr;
  const auto total = static_cast<std::int64_t>(ids.size());
  drawn_there.clear();
  drawn_here.clear();
  std::size_t outcome = 0;
  for (std::size_t i = 0; i < step.work.size(); ++i) {
    const Scheduler::Work& work = step.work[i];
    if (!work.samples) continue;
    const auto last = static_cast<std::int32_t>(offsets[i]) + static_cast<std::int32_t>(work.count - 1);
    (can_draw && answers.at(work.id).plain_draw(0) ? drawn_there : drawn_here)
        .push_back({&work, last, outcome++});
  }
  outcomes.resize(outcome);
  sample_rows(drawn_there, [&](Tile tile) { draw_on_device(tile, engine.logits_of(normed, total, rows)); });
  sample_rows(drawn_here, [&](Tile tile) { draw_on_host(tile, engine.host_logits(normed, total, rows)); });
}

// A tile of whole sequences at a time, as many as their logits allow.
template <class SampleTile>
void ServingEngine::State::sample_rows(Tile all, const SampleTile& sample_tile) {
  const std::int64_t most_rows = std::max<std::int64_t>(1, kTileBytes / (engine.spec().vocab_size * 4));
  for (std::size_t first = 0, end = 0; first < all.size(); first = end) {
    rows.clear();
    for (end = first; end < all.size(); ++end) {
      const std::int32_t drafts = all[end].work->drafts;
      if (!rows.empty() && static_cast<std::int64_t>(rows.size()) + 1 + drafts > most_rows) break;
      for (std::int32_t i = 0; i <= drafts; ++i) rows.push_back(all[end].row + i);
    }
    sample_tile(all.subspan(first, end - first));
  }
}

void ServingEngine::State::draw_on_device(Tile tile, const TensorView& logits) {
  draws.clear();
  for (const Sampled& one : tile)
    for (std::int32_t ahead = 0; ahead <= one.work->drafts; ++ahead)
      draws.push_back(answers.at(one.work->id).plain_draw(static_cast<std::uint64_t>(ahead)).value());
  tokens.resize(draws.size());
  engine.backend().extensions().token_drawer->draw_tokens(logits, draws, tokens);
  std::size_t row = 0;
  for (const Sampled& one : tile) {
    choose(one, [&](std::size_t at, Answer&) {
      Answer::Row drawn;
      drawn.drawn = tokens[row + at];
      return drawn;
    });
    row += static_cast<std::size_t>(1 + one.work->drafts);
  }
}

void ServingEngine::State::draw_on_host(Tile tile, std::span<float> logits) {
  const auto width = static_cast<std::size_t>(engine.spec().vocab_size);
  for (const Sampled& one : tile) {
    choose(one, [&](std::size_t at, Answer& answer) {
      return answer.prepare(logits.subspan(at * width, width), own_logits);
    });
    logits = logits.subspan(static_cast<std::size_t>(1 + one.work->drafts) * width);
  }
}

// The other answers to a prompt: their first tokens come from the row that the first answer's comes from.
void ServingEngine::State::answer_again(const Scheduler::Work& work, const Answer& first,
                                        const Answer::Row& row) {
  const GenerationRequest& request = first.request();
  const std::int64_t most = scheduler.sequence(work.id).request.max_tokens;
  for (int index = 1; index < request.n; ++index) {
    Answer answer(first.shared_request(), index, tokenizer, engine.spec().eos_ids);
    answer.cached = first.cached;
    answer.prompt_logprobs = first.prompt_logprobs;
    answer.adapter = first.adapter;
    GenerationEvent& event = new_event(answer);
    answer.event_at = events_used - 1;
    const std::int32_t token = answer.draw(row);
    const bool stops = answer.take(row, token, event);
    statistics.generated_tokens += request.background ? 0 : static_cast<std::int64_t>(event.tokens.size());
    const std::uint64_t sequence = next_sequence++;
    sequences_of.at(request.id).push_back(sequence);
    const bool lives = !stops && most > 1;
    if (lives) scheduler.fork(work.id, sequence, token);
    if (lives && scheduler.sequence(sequence).runs) fork_state(work, first, answer);
    answers.emplace(sequence, std::move(answer));
    if (!lives) finish(sequence, stops ? FinishReason::kStop : FinishReason::kLength);
  }
}

// Tokens of one sequence: the model's own at every row, as long as the guesses before the row are the same.
// row_of(at, answer) has the row.
template <class RowOf>
void ServingEngine::State::choose(const Sampled& sampled, const RowOf& row_of) {
  const Scheduler::Work& work = *sampled.work;
  Scheduler::Outcome& outcome = outcomes[sampled.outcome];
  Answer& answer = answers.at(work.id);
  const std::size_t event = events_used;
  new_event(answer);
  answer.event_at = event;
  outcome.id = work.id;
  outcome.tokens.clear();
  outcome.stop = false;
  const std::vector<std::int32_t>& guesses = scheduler.sequence(work.id).drafts;
  std::size_t accepted = 0;
  for (std::size_t at = 0; at <= guesses.size(); ++at) {
    const Answer::Row row = row_of(at, answer);
    if (answer.drawn() == 0 && answer.request().n > 1) answer_again(work, answer, row);
    const std::int32_t token = answer.draw(row);
    outcome.tokens.push_back(token);
    outcome.stop = answer.take(row, token, events[event]);
    const bool right = at < guesses.size() && guesses[at] == token;
    accepted += right;
    if (outcome.stop || !right) break;
  }
  take_back(work, answer, outcome.tokens.size() - 1);
  if (!answer.request().background)
    statistics.generated_tokens += static_cast<std::int64_t>(events[event].tokens.size());
  if (guesses.empty()) return;
  ++statistics.draft_rounds;
  statistics.drafted += work.drafts;
  statistics.accepted += static_cast<std::int64_t>(accepted);
  if (statistics.accepted_at.size() < guesses.size()) statistics.accepted_at.resize(guesses.size());
  for (std::size_t i = 0; i < accepted; ++i) ++statistics.accepted_at[i];
  speculation.record(answer.speculation, work.drafts, static_cast<std::int64_t>(accepted));
}

}  // namespace llmq

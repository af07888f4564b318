#include "runtime/serving_engine.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "runtime/serving_state.h"

namespace llmq {
namespace {

constexpr std::int64_t kBackgroundRows = 32;  // of a step: what an answer beside it hardly feels

using Refusal = GenerationRefusal;

double guess_cost(const Engine& engine, const Drafter* drafter) {
  return drafter ? drafter->bytes_per_guess() /
                       static_cast<double>(std::max<std::size_t>(1, engine.weight_bytes()))
                 : 0;
}

double free_rows(const Engine& engine) {
  const ModelSpec& spec = engine.spec();
  // an embedding that no row is multiplied with
  const std::int64_t looked_up = spec.tied_head ? 0 : spec.vocab_size * spec.hidden_size;
  return Speculation::free_rows_of(static_cast<double>(engine.weight_bytes()),
                                   static_cast<double>(spec.parameters() - looked_up));
}

}  // namespace

ServingEngine::State::State(Engine& with, const Tokenizer* text, const ServingOptions& asked,
                            Drafter* guesses)
    : engine(with),
      tokenizer(text),
      options(asked),
      drafter(guesses),
      scheduler(options.limits, with.cache().blocks()),
      speculation(asked.num_draft_tokens, guess_cost(with, drafter), free_rows(with)) {
  if (asked.limits.max_model_len > with.options().max_context + 1)
    fail(ErrorKind::kUsage, {fmt::format("{} positions were asked for, and the model was loaded with {}",
                                         asked.limits.max_model_len, with.options().max_context),
                             {},
                             "--max-model-len",
                             "give a shorter context"});
  if (drafter) speculates = speculation.usual_guesses(1) > 0;
}

// Who may share the pages of a prefix: one tenant's requests of one adapter, and no earlier adapter of the
// same name.
std::string ServingEngine::State::salt_of(const GenerationRequest& request) const {
  if (request.adapter.empty()) return request.tenant;
  return request.tenant + '\0' + std::to_string(adapters.at(request.adapter).prepared->number);
}

std::optional<Refusal> ServingEngine::State::refused(Scheduler::Refusal why,
                                                     const GenerationRequest& request) const {
  using Why = Scheduler::Refusal;
  const std::size_t length = request.prompt.size();
  switch (why) {
    case Why::kNone:
      return std::nullopt;
    case Why::kTooLong:
      return Refusal{Refusal::Kind::kTooLong, "prompt",
                     fmt::format("the prompt has {} tokens, and prompt and answer together may have {}",
                                 length, options.limits.max_model_len)};
    case Why::kTooLarge:
      return Refusal{
          Refusal::Kind::kTooLong, "max_tokens",
          fmt::format("a prompt of {} tokens and an answer of {} do not fit into the KV cache, which holds "
                      "{} positions",
                      length, request.max_tokens, engine.cache().blocks().positions())};
    case Why::kQueueFull:
      return Refusal{Refusal::Kind::kBusy,
                     {},
                     fmt::format("{} requests wait already; try again later", scheduler.waiting())};
    case Why::kBadPriority:
      return Refusal{Refusal::Kind::kInvalid, "priority",
                     fmt::format("priority is {}, which is not between -{} and {}", request.priority,
                                 Scheduler::kPriorities, Scheduler::kPriorities)};
    case Why::kEmptyPrompt:
    case Why::kKnownId:
      break;  // looked at before
  }
  return Refusal{Refusal::Kind::kInvalid, {}, "the request cannot be scheduled"};
}

GenerationEvent& ServingEngine::State::new_event(const Answer& answer) {
  if (events_used == events.size()) events.emplace_back();
  GenerationEvent& event = events[events_used++];
  event.id = answer.request().id;
  event.index = answer.index();
  event.cached_tokens = std::max<std::int64_t>(0, answer.cached);
  event.tokens.clear();
  event.text.clear();
  event.logprobs.clear();
  event.prompt_logprobs.clear();
  event.finish.reset();
  event.failure.clear();
  return event;
}

// Guesses for every sequence that may generate in the next step: also for the first token behind a prompt of
// one step, but only once, because it may have to wait.
void ServingEngine::State::propose() {
  if (!drafter) return;
  jobs.clear();
  const auto sharing = static_cast<std::int64_t>(scheduler.running());
  for (auto& entry : answers) {
    const Scheduler::Sequence& sequence = scheduler.sequence(entry.first);
    const auto size = static_cast<std::int64_t>(sequence.tokens.size());
    const bool generates = sequence.runs && size - sequence.computed == 1;
    const bool begins = !generates && !entry.second.guessed_early &&
                        size - sequence.computed <= options.limits.max_num_batched_tokens &&
                        (sequence.runs || sharing < options.limits.max_num_seqs);
    if (!generates && !begins) continue;
    entry.second.guessed_early |= begins;
    const std::int64_t wanted =
        speculation.guesses(entry.second.speculation, std::max<std::int64_t>(1, sharing));
    const std::int64_t room =
        static_cast<std::int64_t>(sequence.request.prompt.size()) + sequence.request.max_tokens - size - 1;
    // A fixed number is kept to: a round is whole or not at all.
    const std::int64_t most = speculation.adapts() ? std::min(wanted, room) : (room < wanted ? 0 : wanted);
    if (most < 1) continue;
    jobs.push_back({entry.first,
                    sequence.request.salt,
                    sequence.tokens,
                    &entry.second.sampling(),
                    entry.second.drawn(),
                    most,
                    {},
                    entry.second.constrained(),
                    entry.second.ends()});
  }
  if (jobs.empty()) return;
  drafter->propose(jobs);
  for (DraftJob& job : jobs)
    if (!job.guesses.empty()) scheduler.propose(job.sequence, std::move(job.guesses));
}

void ServingEngine::State::note_starts(const Scheduler::Step& step) {
  for (const Scheduler::Start& start : step.started) {
    Answer& answer = answers.at(start.id);
    if (!answer.request().background) {
      statistics.prefix_queries += start.tokens;
      statistics.prefix_hits += start.cached;
    }
    statistics.recomputed_tokens += start.again;
    statistics.restored_tokens += start.restored;
    if (answer.cached >= 0) continue;  // pushed out before
    answer.cached = start.cached;
    started.push_back(answer.request().id);
  }
  statistics.preemptions += static_cast<std::int64_t>(step.preempted.size());
  if (drafter)
    for (const std::uint64_t sequence : step.preempted) drafter->forget(sequence);
}

Buffer ServingEngine::State::forward(const Scheduler::Step& step) {
  ids.clear();
  offsets.clear();
  steps.clear();
  for (const Scheduler::Work& work : step.work) {
    const Scheduler::Sequence& sequence = scheduler.sequence(work.id);
    offsets.push_back(ids.size());
    ids.insert(ids.end(), sequence.tokens.begin() + work.first,
               sequence.tokens.begin() + work.first + work.count);
    ids.insert(ids.end(), sequence.drafts.begin(), sequence.drafts.end());
  }
  for (std::size_t i = 0; i < step.work.size(); ++i) {
    const Scheduler::Work& work = step.work[i];
    const auto count = static_cast<std::size_t>(work.count + work.drafts);
    steps.push_back({std::span<const std::int32_t>(ids).subspan(offsets[i], count), work.first,
                     scheduler.sequence(work.id).table.groups, answers.at(work.id).adapter.get()});
  }
  give_states(step);
  ++statistics.steps;
  statistics.rows += static_cast<std::int64_t>(ids.size());
  return engine.forward(steps);
}

void ServingEngine::State::finish(std::uint64_t sequence, FinishReason reason) {
  Answer& answer = answers.at(sequence);
  answer.finish(reason, events[answer.event_at]);
  if (!answer.request().background)
    ++(answer.failed()                 ? statistics.failed
       : reason == FinishReason::kStop ? statistics.finished_stop
                                       : statistics.finished_length);
  forget(sequence);
}

void ServingEngine::State::forget(std::uint64_t sequence) {
  const auto answer = answers.find(sequence);
  const auto request = sequences_of.find(answer->second.request().id);
  std::erase(request->second, sequence);
  if (request->second.empty()) sequences_of.erase(request);
  answers.erase(answer);
  if (drafter) drafter->forget(sequence);
}

// Behind the last position of every table: room that is taken and holds nothing.
std::int64_t ServingEngine::State::unused_places() const {
  std::int64_t unused = 0;
  for (const auto& entry : scheduler.live()) {
    const KvTable& table = entry.second.table;
    for (const PageTable& own : table.groups)
      unused +=
          static_cast<std::int64_t>(own.blocks.size()) * engine.cache().blocks().block_size() - table.length;
  }
  return unused;
}

void ServingEngine::State::note_places() {
  const KvBlocks& blocks = engine.cache().blocks();
  statistics.kv_places += std::int64_t{blocks.total() - blocks.free()} * blocks.block_size();
  statistics.kv_places_unused += unused_places();
}

void ServingEngine::State::note_speculation() {
  if (!drafter || !speculation.adapts() || scheduler.running() == 0) return;
  const bool now = speculation.usual_guesses(static_cast<std::int64_t>(scheduler.running())) > 0;
  if (now == speculates) return;
  speculates = now;
  const std::string sentence =
      fmt::format("speculation ({}) is {} at {} running sequences: {} of {} guesses were right so far",
                  drafter->name(), now ? "on again" : "off, because it would lose,", scheduler.running(),
                  statistics.accepted, statistics.drafted);
  if (std::exchange(told, true))
    Log::get().detail(sentence);
  else
    Log::get().note(sentence);
}

ServingEngine::ServingEngine(Engine& engine, const Tokenizer* tokenizer, const ServingOptions& options,
                             Drafter* drafter)
    : state_(std::make_unique<State>(engine, tokenizer, options, drafter)) {}

// The cache outlives the engine: what is left of its pages is given back.
ServingEngine::~ServingEngine() {
  for (const auto& entry : state_->answers) {
    state_->scheduler.cancel(entry.first);
    if (state_->drafter) state_->drafter->forget(entry.first);
  }
}

std::optional<GenerationRefusal> ServingEngine::submit(GenerationRequest request) {
  State& state = *state_;
  std::optional<Refusal> refusal = check_request(
      request, state.engine.spec().vocab_size, state.options.limits.max_num_seqs, state.tokenizer != nullptr);
  if (!refusal && state.sequences_of.count(request.id) != 0)
    refusal =
        Refusal{Refusal::Kind::kInvalid, "id", fmt::format("request {} is running already", request.id)};
  const auto adapter = state.adapters.find(request.adapter);
  if (!refusal && !request.adapter.empty() && adapter == state.adapters.end())
    refusal = Refusal{Refusal::Kind::kUnknownModel, "model",
                      fmt::format("the adapter '{}' is not loaded", request.adapter)};
  if (!refusal) {
    const std::uint64_t sequence = state.next_sequence;
    const Scheduler::Refusal why = state.scheduler.add(
        {sequence, request.prompt, request.max_tokens, request.priority, state.salt_of(request),
         !request.prompt_logprobs, request.background ? kBackgroundRows : INT64_MAX});
    refusal = state.refused(why, request);
    if (!refusal) {
      ++state.next_sequence;
      if (!request.background)
        state.statistics.prompt_tokens += static_cast<std::int64_t>(request.prompt.size());
      state.sequences_of[request.id].push_back(sequence);
      const auto answer = state.answers.emplace(
          sequence, Answer(std::make_shared<const GenerationRequest>(std::move(request)), 0, state.tokenizer,
                           state.engine.spec().eos_ids));
      if (adapter == state.adapters.end()) return std::nullopt;
      answer.first->second.adapter = adapter->second.prepared;
      ++adapter->second.requests;
      return std::nullopt;
    }
  }
  state.statistics.refused += !request.background;
  return refusal;
}

void ServingEngine::load_adapter(const std::string& name, const LoraAdapter& adapter) {
  state_->adapters[name] = {state_->engine.prepare(adapter), 0};
}

void ServingEngine::unload_adapter(const std::string& name) { state_->adapters.erase(name); }

void ServingEngine::cancel(std::uint64_t id) {
  State& state = *state_;
  const auto found = state.sequences_of.find(id);
  if (found == state.sequences_of.end()) return;
  for (const std::uint64_t sequence : std::vector<std::uint64_t>(found->second)) {
    const Answer& answer = state.answers.at(sequence);
    // Where the prompt is still to be read, the other answers have not begun.
    const int last = answer.drawn() == 0 ? answer.request().n - 1 : answer.index();
    for (int index = answer.index(); index <= last; ++index) {
      GenerationEvent& event = state.cancelled.emplace_back();
      event.id = id;
      event.index = index;
      event.finish = FinishReason::kCancelled;
      state.statistics.cancelled += !answer.request().background;
    }
    state.scheduler.cancel(sequence);
    state.forget(sequence);
  }
}

const std::vector<GenerationEvent>& ServingEngine::step() {
  State& state = *state_;
  state.events_used = 0;
  state.started.clear();
  state.propose();
  const Scheduler::Step& step = state.scheduler.next();
  state.note_starts(step);
  state.move_states(step);
  KvCache& cache = state.engine.cache();
  cache.swap_out(step.out);
  cache.copy(step.copies);
  cache.swap_in(step.in);
  if (!step.work.empty()) {
    state.note_places();
    const Buffer normed = state.forward(step);
    state.score_prompts(step, normed);
    state.sample(step, normed);
    for (const auto& end : state.scheduler.complete(state.outcomes))
      state.finish(end.first,
                   end.second == Scheduler::Finish::kStop ? FinishReason::kStop : FinishReason::kLength);
    state.note_speculation();
  }
  state.events.resize(state.events_used);
  for (GenerationEvent& event : state.cancelled) state.events.push_back(std::move(event));
  state.cancelled.clear();
  return state.events;
}

const std::vector<std::uint64_t>& ServingEngine::started() const { return state_->started; }

bool ServingEngine::idle() const { return state_->scheduler.idle() && state_->cancelled.empty(); }

const ServingStatistics& ServingEngine::statistics() {
  State& state = *state_;
  ServingStatistics& now = state.statistics;
  KvBlocks& blocks = state.engine.cache().blocks();
  now.running = static_cast<std::int64_t>(state.scheduler.running());
  now.waiting = static_cast<std::int64_t>(state.scheduler.waiting());
  for (const auto& entry : state.answers)
    if (entry.second.request().background)
      --(state.scheduler.sequence(entry.first).runs ? now.running : now.waiting);
  now.kv_blocks_total = blocks.total();
  now.kv_block_size = blocks.block_size();
  now.kv_bytes = static_cast<std::int64_t>(state.engine.cache().bytes());
  now.swap_pages_total = state.options.limits.swap_pages;
  now.swap_pages_used = state.scheduler.swap_pages_used();
  if (const auto& snapshots = blocks.snapshots()) {
    now.state_bytes = static_cast<std::int64_t>(state.engine.spec().state_bytes());
    now.snapshots = snapshots->offered();
    now.snapshots_total = snapshots->total();
    now.snapshots_made = state.engine.snapshots_made();
  }
  now.kv_blocks_used = blocks.total() - blocks.free();
  now.kv_positions_used = now.kv_blocks_used * blocks.block_size() - state.unused_places();
  now.adapters.resize(state.adapters.size());
  auto told = now.adapters.begin();
  for (const auto& entry : state.adapters) {
    told->name = entry.first;
    told->requests = entry.second.requests;
    told->bytes = static_cast<std::int64_t>(entry.second.prepared->bytes);
    told->unfinished = told->running = 0;
    for (const auto& answer : state.answers)
      if (answer.second.adapter == entry.second.prepared) {
        ++told->unfinished;
        told->running += state.scheduler.sequence(answer.first).runs;
      }
    ++told;
  }
  now.draft_tokens_now =
      state.drafter ? state.speculation.usual_guesses(std::max<std::int64_t>(1, now.running)) : 0;
  return now;
}

}  // namespace llmq

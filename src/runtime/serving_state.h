// What a serving engine knows of the requests that live, and the parts of a step.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/token_drawer.h"
#include "runtime/answer.h"
#include "runtime/serving_engine.h"
#include "runtime/speculation.h"

namespace llmq {

struct ServingEngine::State {
  State(Engine& with, const Tokenizer* text, const ServingOptions& asked, Drafter* guesses);

  std::string salt_of(const GenerationRequest& request) const;
  std::optional<GenerationRefusal> refused(Scheduler::Refusal why, const GenerationRequest& request) const;
  GenerationEvent& new_event(const Answer& answer);
  void propose();
  void note_starts(const Scheduler::Step& step);
  void move_states(const Scheduler::Step& step);
  void give_states(const Scheduler::Step& step);
  void take_back(const Scheduler::Work& work, Answer& answer, std::size_t accepted);
  void fork_state(const Scheduler::Work& work, const Answer& from, Answer& to);
  Buffer forward(const Scheduler::Step& step);
  void score_prompts(const Scheduler::Step& step, const Buffer& normed);
  void sample(const Scheduler::Step& step, const Buffer& normed);
  struct Sampled {
    const Scheduler::Work* work;
    std::int32_t row;  // of its first token that is followed by one, in ids
    std::size_t outcome;
  };
  using Tile = std::span<const Sampled>;
  template <class SampleTile>
  void sample_rows(Tile all, const SampleTile& sample_tile);
  void draw_on_device(Tile tile, const TensorView& logits);
  void draw_on_host(Tile tile, std::span<float> logits);
  template <class RowOf>
  void choose(const Sampled& sampled, const RowOf& row_of);
  void answer_again(const Scheduler::Work& work, const Answer& first, const Answer::Row& row);
  void finish(std::uint64_t sequence, FinishReason reason);
  void forget(std::uint64_t sequence);
  void note_speculation();
  std::int64_t unused_places() const;
  void note_places();

  Engine& engine;
  const Tokenizer* tokenizer;
  ServingOptions options;
  Drafter* drafter;
  Scheduler scheduler;
  Speculation speculation;
  bool speculates = false, told = false;  // of which the first change is a note, others are details
  ServingStatistics statistics;
  std::map<std::uint64_t, Answer> answers;                           // by sequence of the scheduler
  std::map<std::uint64_t, std::vector<std::uint64_t>> sequences_of;  // a request
  std::uint64_t next_sequence = 1;
  struct LoadedAdapter {
    std::shared_ptr<const PreparedAdapter> prepared;
    std::int64_t requests = 0;
  };
  std::map<std::string, LoadedAdapter> adapters;
  std::vector<GenerationEvent> cancelled, events;
  std::vector<std::uint64_t> started;
  std::size_t events_used = 0;
  // Of one step, kept so that the next allocates nothing.
  std::vector<DraftJob> jobs;
  std::vector<std::int32_t> ids, rows;
  std::vector<std::size_t> offsets;  // of each work's tokens in ids
  std::vector<Engine::Step> steps;
  std::vector<StateSave> saves;
  std::vector<Scheduler::Outcome> outcomes;
  std::vector<Sampled> drawn_there, drawn_here;  // by the device, by the host
  std::vector<TokenDraw> draws;
  std::vector<std::int32_t> tokens;
  std::vector<float> own_logits;
};

}  // namespace llmq

// Many requests on one model: each step runs what the scheduler decides in one forward pass, and tells what
// every request got.
//
//   * A request's greedy answer, and the text of a seed, are those that it gets alone: not its batch mates,
//     nor chunks, preemption, a shared prefix or speculation change a token (row invariance; draw i of a
//     sequence depends on its seed and i alone).
//   * Adapters (model/adapters/prepared_adapter.h) are loaded and let go between steps. Keys and values
//     depend on them, so prefixes are shared within one only; an answer keeps the adapter that it began with.
//     A drafter knows none of them: its guesses are checked all the same.
//   * No thread and no clock: one caller submits, cancels and steps, and measures the time if it likes.
//   * Tokens come as they are; text comes as whole characters, and what could still become a stop string is
//     held back.
//
// Cost of a step: one forward pass of all its rows, one product with the head for the rows that are followed
// by a token. In a steady batch without text, penalties and logprobs a step allocates nothing.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/drafter.h"
#include "runtime/engine.h"
#include "runtime/generation.h"
#include "runtime/request_engine.h"
#include "runtime/scheduler.h"
#include "tokenizer/tokenizer.h"

namespace llmq {

struct ServingOptions {
  SchedulerLimits limits;  // max_model_len at most the engine's max_context + 1: the last token is never run
  // guesses of each round; 0: as many as pay by the acceptance that is measured, at most 8
  std::int64_t num_draft_tokens = 0;
};

class ServingEngine : public RequestEngine {
 public:
  // `engine` and `tokenizer` live longer; without a tokenizer there is no text, and stop strings are refused.
  // The engine's cache is this object's alone while it lives. Without a drafter, which lives longer too,
  // nothing is speculated.
  ServingEngine(Engine& engine, const Tokenizer* tokenizer, const ServingOptions& options,
                Drafter* drafter = nullptr);
  ~ServingEngine() override;
  ServingEngine(const ServingEngine&) = delete;
  ServingEngine& operator=(const ServingEngine&) = delete;

  std::optional<GenerationRefusal> submit(GenerationRequest request) override;
  void load_adapter(const std::string& name, const LoraAdapter& adapter) override;
  void unload_adapter(const std::string& name) override;
  void cancel(std::uint64_t id) override;
  const std::vector<GenerationEvent>& step() override;
  const std::vector<std::uint64_t>& started() const override;
  bool idle() const override;
  const ServingStatistics& statistics() override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llmq

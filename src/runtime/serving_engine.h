// Many requests on one model: each step runs what the scheduler decides in one forward pass, and tells what
// every request got.
//
//   * A request's greedy answer, and the text of a seed, are those that it gets alone: not its batch mates,
//     nor chunks, preemption, a shared prefix or speculation change a token (row invariance; draw i of a
//     sequence depends on its seed and i alone).
//   * Adapters (model/prepared_adapter.h) are loaded and let go between steps. Keys and values depend on
//     them, so prefixes are shared within one only; an answer keeps the adapter that it began with. A drafter
//     knows none of them: its guesses are checked all the same.
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
#include "runtime/scheduler.h"
#include "tokenizer/tokenizer.h"

namespace llmq {

struct ServingStatistics {
  std::int64_t running = 0, waiting = 0;  // sequences, now
  // now; published blocks that nobody has count as free
  std::int64_t kv_blocks_used = 0, kv_blocks_total = 0;
  std::int64_t kv_bytes = 0;           // of the whole cache
  std::int64_t kv_positions_used = 0;  // filled places in the used blocks, now
  // in blocks that somebody has, and of these without contents: over all steps
  std::int64_t kv_places = 0, kv_places_unused = 0;
  // tokens of requests that started, and of these found
  std::int64_t prefix_queries = 0, prefix_hits = 0;
  std::int64_t prompt_tokens = 0, generated_tokens = 0;  // of accepted requests; of answers
  std::int64_t preemptions = 0, recomputed_tokens = 0, steps = 0, rows = 0;
  // back from the host; its pages, now
  std::int64_t restored_tokens = 0, swap_pages_used = 0, swap_pages_total = 0;
  std::int64_t finished_stop = 0, finished_length = 0, cancelled = 0, failed = 0, refused = 0;
  // Speculation: rounds with drafts, tokens proposed and accepted, and accepted at each place of a round.
  std::int64_t draft_rounds = 0, drafted = 0, accepted = 0;
  std::vector<std::int64_t> accepted_at;
  struct Adapter {
    std::string name;
    std::int64_t unfinished = 0, requests = 0;  // answers now; requests taken since it was loaded
    std::int64_t bytes = 0;                     // of its matrices
  };
  std::vector<Adapter> adapters;  // that are loaded, by name
  // proposed in a round of a new sequence, at present; 0: speculation has turned itself off
  std::int64_t draft_tokens_now = 0;
};

struct ServingOptions {
  SchedulerLimits limits;  // max_model_len at most the engine's max_context + 1: the last token is never run
  // guesses of each round; 0: as many as pay by the acceptance that is measured, at most 8
  std::int64_t num_draft_tokens = 0;
};

class ServingEngine {
 public:
  // `engine` and `tokenizer` live longer; without a tokenizer there is no text, and stop strings are refused.
  // The engine's cache is this object's alone while it lives. Without a drafter, which lives longer too,
  // nothing is speculated.
  ServingEngine(Engine& engine, const Tokenizer* tokenizer, const ServingOptions& options,
                Drafter* drafter = nullptr);
  ~ServingEngine();
  ServingEngine(const ServingEngine&) = delete;
  ServingEngine& operator=(const ServingEngine&) = delete;

  // Nothing, and the request is in; or why it is not.
  std::optional<GenerationRefusal> submit(GenerationRequest request);
  // An adapter that requests may name from now on, in the place of another one of that name.
  void load_adapter(const std::string& name, const LoraAdapter& adapter);
  void unload_adapter(const std::string& name);  // unknown ones too
  // All answers of a request that have not ended: their pages are free at once, their last events come with
  // the next step. Unknown ids are those of finished requests: nothing happens.
  void cancel(std::uint64_t id);
  // Runs one scheduler step. The events, in an order that the same calls always give, are valid until the
  // next call. An Error means that the model or the device failed: the engine is of no more use.
  const std::vector<GenerationEvent>& step();
  // Requests of which the last step ran something for the first time: until then they waited.
  const std::vector<std::uint64_t>& started() const;
  // No sequence runs or waits, and no event is left to tell.
  bool idle() const;
  const ServingStatistics& statistics();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llmq

// What a server needs of an engine that answers requests: runtime/serving_engine.h is one, and tests put
// their own in its place. One caller submits, cancels and steps.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/adapters/lora_adapter.h"
#include "runtime/generation.h"

namespace llmq {

struct ServingStatistics {
  std::int64_t running = 0, waiting = 0;  // sequences, now
  // now; published blocks that nobody has count as free
  std::int64_t kv_blocks_used = 0, kv_blocks_total = 0, kv_block_size = 0;
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
  // Copies of recurrent states that prefixes are found by: now, at the most, and with memory so far; bytes of
  // one, 0: there are none.
  std::int64_t snapshots = 0, snapshots_total = 0, snapshots_made = 0, state_bytes = 0;
  std::int64_t finished_stop = 0, finished_length = 0, cancelled = 0, failed = 0, refused = 0;
  // Speculation: rounds with drafts, tokens proposed and accepted, and accepted at each place of a round.
  std::int64_t draft_rounds = 0, drafted = 0, accepted = 0;
  std::vector<std::int64_t> accepted_at;
  struct Adapter {
    std::string name;
    std::int64_t unfinished = 0, running = 0;  // answers now, and of these in the present step
    std::int64_t requests = 0;                 // taken since it was loaded
    std::int64_t bytes = 0;                    // of its matrices
  };
  std::vector<Adapter> adapters;  // that are loaded, by name
  // proposed in a round of a new sequence, at present; 0: speculation has turned itself off
  std::int64_t draft_tokens_now = 0;
};

class RequestEngine {
 public:
  virtual ~RequestEngine() = default;

  // Nothing, and the request is in; or why it is not.
  virtual std::optional<GenerationRefusal> submit(GenerationRequest request) = 0;
  // An adapter that requests may name from now on, in the place of another one of that name.
  virtual void load_adapter(const std::string& name, const LoraAdapter& adapter) = 0;
  virtual void unload_adapter(const std::string& name) = 0;  // unknown ones too
  // All answers of a request that have not ended: their pages are free at once, their last events come with
  // the next step. Unknown ids are those of finished requests: nothing happens.
  virtual void cancel(std::uint64_t id) = 0;
  // Runs one scheduler step. The events, in an order that the same calls always give, are valid until the
  // next call. An Error means that the model or the device failed: the engine is of no more use.
  virtual const std::vector<GenerationEvent>& step() = 0;
  // Requests of which the last step ran something for the first time: until then they waited.
  virtual const std::vector<std::uint64_t>& started() const = 0;
  // No sequence runs or waits, and no event is left to tell.
  virtual bool idle() const = 0;
  virtual const ServingStatistics& statistics() = 0;
};

}  // namespace llmq

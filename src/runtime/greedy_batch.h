// Sequences that are continued together: each step appends the likeliest token to every one of them.
//
// All sequences share one forward pass and one product with the head per step, so that the weights are read once.
// A sequence's tokens do not depend on the others (row invariance).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine.h"

namespace llmq {

class GreedyBatch {
 public:
  GreedyBatch(Engine& engine, std::int64_t sequences);  // opened in the engine's cache, empty
  ~GreedyBatch();                                       // and closed again
  GreedyBatch(const GreedyBatch&) = delete;
  GreedyBatch& operator=(const GreedyBatch&) = delete;

  // Appends a prompt of at least one token to one sequence, `chunk` rows at a time; returns the token that follows.
  std::int32_t prefill(std::size_t sequence, std::span<const std::int32_t> prompt, std::int64_t chunk = 512);
  // One more token of every sequence, each of which must have been prefilled; valid until the next call.
  std::span<const std::int32_t> step();

 private:
  void choose(const TensorView& normed_rows, std::span<std::int32_t> tokens);

  Engine& engine_;
  std::vector<std::uint64_t> sequences_;
  std::vector<std::int32_t> tokens_;  // the last of each sequence, not yet in the cache
  std::vector<Engine::Step> steps_;
  std::vector<float> host_logits_;  // where the device is not the host
};

}  // namespace llmq

// How fast a loaded model reads prompts and writes tokens, and how much of the machine's bandwidth that uses.
//
// A case is `batch` prompts of `prompt_tokens` at once, read one after another in steps of 512 rows, then
// `new_tokens` of each, greedily, all sequences in one step; both by the serving engine, whose prefix cache
// hands the prompts from one part to the other. Definitions:
//
//   ttft    from the start of the run until a sequence's first token: with a batch, later sequences wait for
//           earlier ones
//   itl     between two tokens of a sequence: the time of one step
//   tokens per second   batch * (new_tokens - 1) / time of all steps: after the first token, prompts not
//                       counted
//   prefill tokens per second   batch * prompt_tokens / time until the last sequence's first token
//   bytes per step   what one step reads at the least: every weight once, the cached keys and values at the
//                    middle of the run, one row of the embedding per sequence
//
// Percentiles are over all runs (nearest rank). The first run, shorter, is discarded. No tokenization, no
// sampling.
#pragma once
#include <cstdint>
#include <functional>
#include <span>

#include "runtime/engine.h"

namespace llmq {

struct SpeedCase {
  std::int64_t batch = 1, prompt_tokens = 512, new_tokens = 64;
  int runs = 5;
  std::int64_t cached_tokens() const { return batch * (prompt_tokens + new_tokens); }
};

struct SpeedResult {
  SpeedCase asked;
  double ttft_p50 = 0, ttft_p95 = 0, itl_p50 = 0, itl_p95 = 0;  // seconds
  double tokens_per_second = 0, prefill_tokens_per_second = 0;
  double bytes_per_step = 0;
  // Two for each weight of a linear or the head and each row, and attention's: of one decoding step, and of a
  // step that reads prompts, with the weights' bytes.
  double operations_per_step = 0;
  double prefill_operations_per_token = 0, prefill_bytes_per_token = 0;
  // Of a machine that reads so much, by the median step.
  double bandwidth_fraction(double read_bytes_per_second) const;
};

// Of sorted values, the least that at least `share` of them do not exceed; 0 of none.
double nearest_rank(std::span<const double> sorted, double share);

// The engine's cache must hold cached_tokens(), every sequence in whole blocks. `between_steps` (may be
// empty) is called outside the timed parts, and may throw.
SpeedResult measure_speed(Engine& engine, const SpeedCase& asked,
                          const std::function<void()>& between_steps = {});

}  // namespace llmq

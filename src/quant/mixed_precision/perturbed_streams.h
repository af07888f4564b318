// Copies of a few short samples on their way through the blocks, each disturbed once, where it was forked
// from the undisturbed one; at the end, how far each one's predictions moved.
//
//   stream 0:       h_0 -> block 0 -> block 1 -> ... -> p            (the original model)
//   stream i:       h_0 -> ... -> block b with other weights -> ... -> q_i
//   divergences():  KL(p || q_i) in nats, averaged over positions
//
// Memory: one FP32 residual stream each. Time: every stream runs every block after its fork, so disturbing
// each of L blocks once is L^2 / 2 block passes over the tokens of one stream.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "model/run_sublayer.h"

namespace llmq {

class ProbeStreams {
 public:
  // Samples of one length; room for `most` streams.
  ProbeStreams(const ForwardContext& context, const Checkpoint& checkpoint,
               std::span<const std::vector<std::int32_t>> samples, std::int64_t most);

  // A new stream that is now where stream 0 is, run through `block` with `weights`: it must be forked before
  // stream 0 runs the block.
  void fork(int block, const BlockWeights& weights);
  // Every stream that existed before the forks from this block, through it.
  void advance(int block, const BlockWeights& weights);
  // What `most` streams of so many tokens hold, with the KV pages of a batch; and what divergences() takes
  // beside the head.
  static std::uint64_t bytes(const ModelSpec& spec, Compute compute, std::int64_t tokens, std::int64_t most);
  static std::uint64_t scoring_bytes(const ModelSpec& spec, Compute compute, std::int64_t tokens);

  // Of the forked streams, in the order of their forks.
  std::vector<double> divergences(const LinearSource& source) const;

 private:
  TensorView stream(std::int64_t index) const;  // [tokens, hidden_size]
  void run(int block, const BlockWeights& weights, std::int64_t first, std::int64_t count);

  const ForwardContext& context_;
  std::int64_t most_, length_, samples_, tokens_;
  std::int64_t settled_ = 1, streams_ = 1;  // streams before this block's forks, and with them
  std::int64_t at_once_;                    // streams in one batch
  Buffer hidden_, keys_, values_;
  std::int64_t pages_ = 0;                         // how many
  std::vector<std::vector<std::int32_t>> tables_;  // of each sequence of a batch
};

}  // namespace llmq

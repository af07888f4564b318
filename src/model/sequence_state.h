// What one sequence leaves in blocks that have no pages for it (docs/adr/0023-recurrent-state.md): of every
// gated delta net the last rows before its convolution, and the state of each head. One size whatever the
// length; F32 on the backend of its block.
//
// It knows how many positions it has seen, because it is good for the next one alone.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "device/backend.h"
#include "model/block_spec.h"

namespace llmq {

// Of one block.
struct RecurrentState {
  Buffer storage;
  TensorView before;  // [taps - 1, q, k and v]
  TensorView state;   // [value_heads, key_dim, value_dim]
  void clear(Backend& backend) const;
};
RecurrentState make_recurrent_state(Backend& backend, const DeltaSpec& spec);

class SequenceState {
 public:
  // Of the blocks that have one; `backends`: of each block. Undefined before a step from position 0 on.
  SequenceState(std::span<const BlockSpec> blocks, std::span<Backend* const> backends);

  const RecurrentState& at(std::size_t block) const { return blocks_.at(block); }
  std::int64_t length() const { return length_; }
  // While a step runs, and where it fails, it is of no sequence.
  void begin() { length_ = kUnknown; }
  void end(std::int64_t length) { length_ = length; }
  void copy_from(const SequenceState& other);  // of the same model

 private:
  static constexpr std::int64_t kUnknown = -1;
  std::vector<RecurrentState> blocks_;  // empty where a block has none
  std::vector<Backend*> backends_;
  std::int64_t length_ = 0;
};

}  // namespace llmq

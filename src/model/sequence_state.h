// What one sequence leaves in blocks that have no pages for it (docs/adr/0023-recurrent-state.md): of every
// gated delta net the last rows before its convolution, and the state of each head. One size whatever the
// length; F32 on the backend of its block.
//
// It knows how many positions it has seen, because it is good for the next one alone. Two things leave a copy
// of an earlier length, both while a step passes it, so that no step is cut for them:
//
//   * saves: what it is behind a position goes to another state, which prefixes are found by;
//   * guesses: what it is before the first of them is kept, and of each row of them what the rule reads
//     (q, k and v before the convolution, decay and share). What was wrong is taken back by going on from
//     there over the rows that were right: no linear runs again. Cost: a second state, and a copy a round.
#pragma once
#include <cstdint>
#include <memory>
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

class SequenceState;

// What a sequence has seen of its first `position` tokens goes to `to` as well.
struct StateSave {
  std::int64_t position = 0;
  SequenceState* to = nullptr;
};

// What a gated delta net reads of some rows, behind its linears.
struct DeltaRows {
  TensorView mixed, decay, share;  // F32 [T, q, k and v], [T, value_heads], the same
  DeltaRows slice(std::int64_t first, std::int64_t count) const {
    return {mixed.row_slice(first, count), decay.row_slice(first, count), share.row_slice(first, count)};
  }
};

class SequenceState {
 public:
  // Of the blocks that have one; `backends`: of each block. Undefined before a step from position 0 on.
  SequenceState(std::span<const BlockSpec> blocks, std::span<Backend* const> backends);

  const RecurrentState& at(std::size_t block) const { return blocks_.at(block); }
  std::int64_t length() const { return length_; }
  std::uint64_t bytes() const;
  void copy_from(const SequenceState& other);  // of the same model; guesses are not taken along
  // All of it, in host memory of bytes(); written, it is of a sequence of so many positions.
  void read(std::span<std::byte> to) const;
  void write(std::span<const std::byte> from, std::int64_t length);

  // While a step runs, and where it fails, it is of no sequence, as are those of `saves`, whose positions the
  // step reaches. They live until end().
  void begin(std::span<const StateSave> saves = {});
  void end(std::int64_t length);

  // The rows from `position` on, `most` at the most, are guesses until settle() or drop_guesses(). Before the
  // step that reaches it.
  void guess_from(std::int64_t position, std::int64_t most);
  // What it is before the first guess.
  const SequenceState& before_guesses() const { return *kept_; }
  void drop_guesses() { first_guess_ = kUnknown; }
  // It goes back to `length` positions: replay(block, state, rows) goes over guesses that were right.
  // Error(kInternal) where it is of other positions.
  template <class Replay>
  void settle(std::int64_t length, const Replay& replay) {
    if (goes_back(length))
      for (std::size_t block = 0; block < blocks_.size(); ++block)
        if (blocks_[block].storage.bytes() > 0 && length > first_guess_)
          replay(block, blocks_[block], guessed_[block].rows.slice(0, length - first_guess_));
    drop_guesses();
    length_ = length;
  }

  // For a mixer, of the rows [from, end) that it goes over: where it has to stop next; what it has read of a
  // part that begins at `from`, and that a part has ended at `end`.
  std::int64_t next_stop(std::int64_t from, std::int64_t end) const;
  void note_rows(std::size_t block, std::int64_t from, const DeltaRows& rows) const;
  void note_stop(std::size_t block, std::int64_t end) const;

 private:
  static constexpr std::int64_t kUnknown = -1;
  struct Guessed {
    Buffer storage;
    DeltaRows rows;
  };
  SequenceState() = default;
  std::unique_ptr<SequenceState> of_the_same_sizes() const;
  void make_room(std::int64_t rows);
  void copy_block(std::size_t block, const SequenceState& from) const;
  bool goes_back(std::int64_t length);

  std::vector<RecurrentState> blocks_;  // empty where a block has none
  std::vector<Backend*> backends_;
  std::int64_t length_ = 0;
  std::span<const StateSave> saves_;
  std::unique_ptr<SequenceState> kept_;  // once it was guessed for
  std::vector<Guessed> guessed_;         // by block
  std::int64_t first_guess_ = kUnknown, room_ = 0;
};

}  // namespace llmq

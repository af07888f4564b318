#include "model/sequence_state.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace llmq {
namespace {

RecurrentState state_of_sizes(Backend& backend, const Shape& before, const Shape& state) {
  RecurrentState made;
  made.storage =
      backend.allocate(static_cast<std::size_t>(before.elements() + state.elements()) * sizeof(float));
  made.state = made.storage.view(DType::kF32, state);
  made.before = TensorView(made.state.as<float>() + state.elements(), DType::kF32, before, made.state.device);
  return made;
}

// All of a block's state, which lies in one piece.
TensorView whole(const RecurrentState& state) {
  const auto count = static_cast<std::int64_t>(state.storage.bytes() / sizeof(float));
  return TensorView(state.state.pointer, DType::kF32, {count}, state.state.device);
}

}  // namespace

void RecurrentState::clear(Backend& backend) const {
  backend.clear(before);
  backend.clear(state);
}

RecurrentState make_recurrent_state(Backend& backend, const DeltaSpec& spec) {
  return state_of_sizes(backend, {spec.taps - 1, spec.convolved()},
                        {spec.heads.value_heads, spec.heads.key_dim, spec.heads.value_dim});
}

SequenceState::SequenceState(std::span<const BlockSpec> blocks, std::span<Backend* const> backends)
    : blocks_(blocks.size()), backends_(backends.begin(), backends.end()) {
  for (std::size_t i = 0; i < blocks.size(); ++i)
    if (const DeltaSpec* const delta = blocks[i].delta())
      blocks_[i] = make_recurrent_state(*backends[i], *delta);
}

std::unique_ptr<SequenceState> SequenceState::of_the_same_sizes() const {
  std::unique_ptr<SequenceState> made(new SequenceState());
  made->backends_ = backends_;
  made->blocks_.resize(blocks_.size());
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    if (blocks_[i].storage.bytes() > 0)
      made->blocks_[i] = state_of_sizes(*backends_[i], blocks_[i].before.shape, blocks_[i].state.shape);
  return made;
}

std::uint64_t SequenceState::bytes() const {
  return std::accumulate(
      blocks_.begin(), blocks_.end(), std::uint64_t{0},
      [](std::uint64_t sum, const RecurrentState& state) { return sum + state.storage.bytes(); });
}

void SequenceState::copy_block(std::size_t block, const SequenceState& from) const {
  if (blocks_[block].storage.bytes() > 0)
    backends_[block]->convert(whole(blocks_[block]), whole(from.blocks_[block]));
}

void SequenceState::copy_from(const SequenceState& other) {
  for (std::size_t i = 0; i < blocks_.size(); ++i) copy_block(i, other);
  length_ = other.length_;
  drop_guesses();
}

void SequenceState::read(std::span<std::byte> to) const {
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    if (const std::size_t own = blocks_[i].storage.bytes(); own > 0) {
      backends_[i]->download(to.data(), whole(blocks_[i]));
      to = to.subspan(own);
    }
}

void SequenceState::write(std::span<const std::byte> from, std::int64_t length) {
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    if (const std::size_t own = blocks_[i].storage.bytes(); own > 0) {
      backends_[i]->upload(whole(blocks_[i]), from.data());
      from = from.subspan(own);
    }
  length_ = length;
  drop_guesses();
}

void SequenceState::begin(std::span<const StateSave> saves) {
  length_ = kUnknown;
  saves_ = saves;
  for (const StateSave& save : saves_) save.to->length_ = kUnknown;
}

void SequenceState::end(std::int64_t length) {
  length_ = length;
  for (const StateSave& save : std::exchange(saves_, {})) save.to->length_ = save.position;
  if (kept_ && first_guess_ != kUnknown) kept_->length_ = first_guess_;
}

void SequenceState::guess_from(std::int64_t position, std::int64_t most) {
  if (position < length_)
    fail(ErrorKind::kInternal, "guesses begin at position {} of a state that has seen {}", position, length_);
  if (!kept_) kept_ = of_the_same_sizes();
  make_room(most);
  first_guess_ = position;
  if (position != length_) return;  // the step passes it
  if (position == 0)
    for (std::size_t i = 0; i < blocks_.size(); ++i)
      if (blocks_[i].storage.bytes() > 0) kept_->blocks_[i].clear(*backends_[i]);
  if (position > 0)
    for (std::size_t i = 0; i < blocks_.size(); ++i) kept_->copy_block(i, *this);
  kept_->length_ = position;
}

// Before a step, so that a mixer allocates nothing for it.
void SequenceState::make_room(std::int64_t rows) {
  if (rows <= room_) return;
  guessed_.clear();
  guessed_.resize(blocks_.size());
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].storage.bytes() == 0) continue;
    const std::int64_t mixed = blocks_[i].before.cols(), heads = blocks_[i].state.shape[0];
    Guessed& own = guessed_[i];
    own.storage =
        backends_[i]->allocate(static_cast<std::size_t>(rows * (mixed + 2 * heads)) * sizeof(float));
    own.rows.mixed = own.storage.view(DType::kF32, {rows, mixed});
    float* const behind = own.rows.mixed.as<float>() + rows * mixed;
    own.rows.decay = TensorView(behind, DType::kF32, {rows, heads}, own.rows.mixed.device);
    own.rows.share = TensorView(behind + rows * heads, DType::kF32, {rows, heads}, own.rows.mixed.device);
  }
  room_ = rows;
}

bool SequenceState::goes_back(std::int64_t length) {
  if (length == length_) return false;
  if (first_guess_ == kUnknown || length < first_guess_ || length > length_)
    fail(ErrorKind::kInternal, "a state that has seen {} positions cannot go back to {}", length_, length);
  std::swap(blocks_, kept_->blocks_);
  return true;
}

std::int64_t SequenceState::next_stop(std::int64_t from, std::int64_t end) const {
  std::int64_t stop = end;
  const auto at = [&](std::int64_t position) {
    if (position > from && position < stop) stop = position;
  };
  at(first_guess_);
  for (const StateSave& save : saves_) at(save.position);
  return stop;
}

void SequenceState::note_rows(std::size_t block, std::int64_t from, const DeltaRows& rows) const {
  if (first_guess_ == kUnknown || from < first_guess_) return;
  const std::int64_t count = rows.mixed.rows();
  if (from - first_guess_ + count > room_)
    fail(ErrorKind::kInternal, "{} guesses, and a state has room for {}", from - first_guess_ + count, room_);
  const DeltaRows to = guessed_[block].rows.slice(from - first_guess_, count);
  Backend& backend = *backends_[block];
  backend.convert(to.mixed, rows.mixed);
  backend.convert(to.decay, rows.decay);
  backend.convert(to.share, rows.share);
}

void SequenceState::note_stop(std::size_t block, std::int64_t end) const {
  if (end == first_guess_) kept_->copy_block(block, *this);
  for (const StateSave& save : saves_)
    if (save.position == end) save.to->copy_block(block, *this);
}

}  // namespace llmq

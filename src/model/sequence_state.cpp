#include "model/sequence_state.h"

namespace llmq {

void RecurrentState::clear(Backend& backend) const {
  backend.clear(before);
  backend.clear(state);
}

RecurrentState make_recurrent_state(Backend& backend, const DeltaSpec& spec) {
  const Shape before{spec.taps - 1, spec.convolved()},
      state{spec.heads.value_heads, spec.heads.key_dim, spec.heads.value_dim};
  RecurrentState made;
  made.storage =
      backend.allocate(static_cast<std::size_t>(before.elements() + state.elements()) * sizeof(float));
  made.state = made.storage.view(DType::kF32, state);
  made.before = TensorView(made.state.as<float>() + state.elements(), DType::kF32, before, made.state.device);
  return made;
}

SequenceState::SequenceState(std::span<const BlockSpec> blocks, std::span<Backend* const> backends)
    : blocks_(blocks.size()), backends_(backends.begin(), backends.end()) {
  for (std::size_t i = 0; i < blocks.size(); ++i)
    if (const DeltaSpec* const delta = blocks[i].delta())
      blocks_[i] = make_recurrent_state(*backends[i], *delta);
}

void SequenceState::copy_from(const SequenceState& other) {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].storage.bytes() == 0) continue;
    const RecurrentState &to = blocks_[i], &from = other.blocks_[i];
    backends_[i]->convert(to.before, from.before);
    backends_[i]->convert(to.state, from.state);
  }
  length_ = other.length_;
}

}  // namespace llmq

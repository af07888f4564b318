// inner = norm(delta_rule(causal_conv(mixed))) * silu(gate), head by head, with mixed, gate, decay and share
// linears of x (model/block_spec.h, docs/adr/0023-recurrent-state.md).
//
// The rows of a sequence go into its state in order, one part of them after the other; a part changes it only
// behind everything that it allocates, so that it can be tried again with fewer rows.
#include <numeric>
#include <optional>
#include <vector>

#include "base/error.h"
#include "model/mixers/mixer.h"

namespace llmq {
namespace {

struct OwnRows {
  Buffer storage;
  TensorView view;
  OwnRows(Backend& backend, std::int64_t rows, std::int64_t width)
      : storage(backend.allocate(static_cast<std::size_t>(rows * width) * sizeof(float))),
        view(storage.view(DType::kF32, {rows, width})) {}
};

TensorView columns_of(const TensorView& rows, std::int64_t first, std::int64_t count) {
  TensorView some = rows;
  some.pointer = rows.as<float>() + first;
  some.shape = Shape{rows.rows(), count};
  return some;
}

// A piece of every group of a row, one group's behind another's.
struct Piece {
  std::int64_t first = 0, width = 0;
};

// Pieces of the groups of `from` [rows, groups * group] as rows of `to`, one piece of all groups behind
// another. Units that divide all sizes are looked up as rows of a table.
void put_in_order(Backend& backend, const TensorView& to, const TensorView& from, std::int64_t groups,
                  std::initializer_list<Piece> pieces) {
  const std::int64_t rows = from.rows(), group = from.cols() / groups;
  std::int64_t unit = group;
  for (const Piece& piece : pieces) unit = std::gcd(unit, std::gcd(piece.first, piece.width));
  std::vector<std::int32_t> ids;
  for (std::int64_t row = 0; row < rows; ++row)
    for (const Piece& piece : pieces)
      for (std::int64_t g = 0; g < groups; ++g)
        for (std::int64_t at = 0; at < piece.width; at += unit)
          ids.push_back(static_cast<std::int32_t>((row * from.cols() + g * group + piece.first + at) / unit));
  const auto units_of = [&](const TensorView& all) {
    return TensorView(all.pointer, DType::kF32, {all.shape.elements() / unit, unit}, all.device);
  };
  backend.embed(units_of(to), units_of(from), ids);
}

// What the linears of `count` rows give, in the order that the operations want.
struct Projected {
  OwnRows mixed, gate, decay, share;

  Projected(const MixerRun& run, const DeltaSpec& spec, const TensorView& x, const RowAdapters& adapters)
      : mixed(run.context.backend, x.rows(), spec.convolved()),
        gate(run.context.backend, x.rows(), spec.heads.values()),
        decay(run.context.backend, x.rows(), spec.heads.value_heads),
        share(run.context.backend, x.rows(), spec.heads.value_heads) {
    Backend& backend = run.context.backend;
    if (!spec.grouped()) {
      const PartOutput outputs[] = {{spec.mixed, mixed.view},
                                    {*spec.gate, gate.view},
                                    {*spec.decay, decay.view},
                                    {spec.share, share.view}};
      run_linears(backend, run.weights, x, outputs, adapters);
      return;
    }
    const OwnRows wide(backend, x.rows(), spec.convolved() + spec.heads.values()),
        both(backend, x.rows(), 2 * spec.heads.value_heads);
    const PartOutput outputs[] = {{spec.mixed, wide.view}, {spec.share, both.view}};
    run_linears(backend, run.weights, x, outputs, adapters);
    const std::int64_t groups = spec.heads.key_heads, keys = spec.heads.key_dim,
                       values = spec.heads.values() / groups, repeat = spec.heads.value_heads / groups;
    put_in_order(backend, mixed.view, wide.view, groups, {{0, keys}, {keys, keys}, {2 * keys, values}});
    put_in_order(backend, gate.view, wide.view, groups, {{2 * keys + values, values}});
    put_in_order(backend, share.view, both.view, groups, {{0, repeat}});
    put_in_order(backend, decay.view, both.view, groups, {{repeat, repeat}});
  }
};

// given = delta_rule(seen = causal_conv(mixed)), which changes the state.
void apply_rule(Backend& backend, const DeltaSpec& spec, const BlockWeights& weights, const DeltaRows& rows,
                const TensorView& seen, const TensorView& given, const RecurrentState& state) {
  const DeltaHeads& heads = spec.heads;
  const DeltaGates gates{rows.decay, rows.share, vector_view(weights.at(spec.rate)),
                         vector_view(weights.at(spec.shift))};
  backend.causal_conv(seen, rows.mixed,
                      weights.at(spec.conv).view(DType::kF32, {spec.taps, spec.convolved()}), state.before);
  backend.delta_rule(given, columns_of(seen, 0, heads.keys()), columns_of(seen, heads.keys(), heads.keys()),
                     columns_of(seen, 2 * heads.keys(), heads.values()), gates, state.state, heads);
}

class DeltaRun {
 public:
  DeltaRun(const MixerRun& run, const DeltaSpec& spec)
      : run_(run), spec_(spec), backend_(run.context.backend) {
    if (!run.rows.states.empty()) return;
    own_ = make_recurrent_state(backend_, spec);
    for (const SequenceRows& sequence : run.rows.sequences)
      if (sequence.context != 0)
        fail(ErrorKind::kInternal, "a sequence goes on at position {} and has no state", sequence.context);
  }

  void pass(std::int64_t first, const TensorView& x, const TensorView& inner) {
    const Projected projected(run_, spec_, x, run_.adapters().from(first));
    const OwnRows seen(backend_, x.rows(), spec_.convolved()),
        given(backend_, x.rows(), spec_.heads.values());
    const DeltaRows all_rows{projected.mixed.view, projected.decay.view, projected.share.view};
    const std::vector<SequenceRows>& all = run_.rows.sequences;
    for (std::size_t i = 0; i < all.size(); ++i)
      for (const SequenceRows& rows : clip_sequences({all[i]}, run_.first + first, x.rows())) {
        const auto of_rows = [&](const TensorView& of) { return of.row_slice(rows.first_row, rows.rows); };
        go_over(all_rows.slice(rows.first_row, rows.rows), rows.context, of_rows(seen.view),
                of_rows(given.view), run_.rows.states.empty() ? nullptr : run_.rows.states[i]);
      }
    finish(given.view, projected.gate.view, inner);
  }

 private:
  // Rows of one sequence from position `from` on, stopping where somebody wants what its state is there.
  void go_over(const DeltaRows& rows, std::int64_t from, const TensorView& seen, const TensorView& given,
               const SequenceState* owner) const {
    const auto block = static_cast<std::size_t>(run_.block);
    const RecurrentState& state = owner == nullptr ? *own_ : owner->at(block);
    if (from == 0) state.clear(backend_);
    const std::int64_t end = from + rows.mixed.rows();
    for (std::int64_t at = from, stop = end; at < end; at = stop) {
      stop = owner == nullptr ? end : owner->next_stop(at, end);
      const DeltaRows part = rows.slice(at - from, stop - at);
      apply_rule(backend_, spec_, run_.weights, part, seen.row_slice(at - from, stop - at),
                 given.row_slice(at - from, stop - at), state);
      if (owner == nullptr) continue;
      owner->note_rows(block, at, part);
      owner->note_stop(block, stop);
    }
  }

  void finish(const TensorView& given, const TensorView& gate, const TensorView& inner) const {
    const BlockSpec& block = run_.context.spec.blocks.at(static_cast<std::size_t>(run_.block));
    const TensorView heads(given.pointer, DType::kF32,
                           {given.rows() * spec_.heads.value_heads, spec_.heads.value_dim}, given.device);
    run_norm(backend_, block.at(spec_.norm), run_.weights.at(spec_.norm), heads, heads);
    backend_.gated_activation(inner, gate, given, Activation::kSilu);
  }

  const MixerRun& run_;
  const DeltaSpec& spec_;
  Backend& backend_;
  std::optional<RecurrentState> own_;  // of the sequence that runs, where nobody keeps one
};

}  // namespace

void run_mixer(const MixerRun& run, const DeltaSpec& spec, const TensorView& x, const TensorView& inner) {
  DeltaRun delta(run, spec);
  for_fitting_rows(run.context.chunks, run.context.fitting.get(), x.rows(), spec.row_floats(),
                   [&](std::int64_t first, std::int64_t count) {
                     delta.pass(first, x.row_slice(first, count), inner.row_slice(first, count));
                   });
}

void replay_rows(Backend& backend, const DeltaSpec& spec, const BlockWeights& weights, const DeltaRows& rows,
                 const RecurrentState& state) {
  const OwnRows seen(backend, rows.mixed.rows(), spec.convolved()),
      given(backend, rows.mixed.rows(), spec.heads.values());
  apply_rule(backend, spec, weights, rows, seen.view, given.view, state);
}

}  // namespace llmq

// inner = attention(rope(norm(q)), rope(norm(k)), v) over the pages, with q, k and v linears of x; times
// sigmoid(gate) where q has gates beside it.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "model/mixers/mixer.h"

namespace llmq {
namespace {

// norm(x) in place; x F32 [rows, heads, head_dim], heads row_stride apart where no norm is over all of them.
void normalize(const ForwardContext& context, const BlockWeights& weights, NormId norm, const TensorView& x,
               const BlockSpec& block) {
  const NormSpec& of_rows = block.at(norm);
  TensorView rows(x.pointer, DType::kF32, {x.shape.elements() / of_rows.width, of_rows.width}, x.device);
  if (of_rows.width == x.shape.back()) rows.row_stride = x.row_stride;
  run_norm(context.backend, of_rows, weights.at(norm), rows, rows);
}

// rope(norm(x)), in place.
void normalize_and_rotate(const ForwardContext& context, const BlockWeights& weights,
                          const AttentionSpec& spec, std::optional<NormId> norm, std::size_t table,
                          const TensorView& x, std::span<const std::int32_t> positions,
                          const BlockSpec& block) {
  if (norm) normalize(context, weights, *norm, x, block);
  if (spec.rope.dims == 0) return;
  TensorView turned = x;
  turned.shape = Shape{x.shape[0], x.shape[1], spec.rope.dims};
  turned.row_stride = x.row_stride;
  const Shape angles{context.positions, spec.rope.dims / 2};
  const RopeOnDevice& rope = context.ropes[table];
  context.backend.rope(turned, positions, rope.cosines.view(DType::kF32, angles),
                       rope.sines.view(DType::kF32, angles), spec.rope.pairs);
}

// F32 [rows, heads, head_dim] of the device.
struct Heads {
  Buffer storage;
  TensorView view;
  Heads(Backend& backend, std::int64_t rows, std::int64_t heads, std::int64_t head_dim)
      : storage(backend.allocate(static_cast<std::size_t>(rows * heads * head_dim) * sizeof(float))),
        view(storage.view(DType::kF32, {rows, heads, head_dim})) {}
};

// Of heads of two halves [rows, heads, 2 * head_dim], the first or the second.
TensorView half_of_heads(const TensorView& both, std::int64_t which) {
  TensorView half = both;
  const std::int64_t dim = both.shape.back() / 2;
  half.pointer = both.as<float>() + which * dim;
  half.shape = Shape{both.shape[0], both.shape[1], dim};
  return half;
}

// Where a block's pages have a basis of their own, what is stored and asked goes into it, and what comes out
// of it back.
struct PageBasis {
  const ForwardContext& context;
  const AttentionSpec& spec;
  const KvBasis& basis;

  void enter(Heads& q, Heads& k, Heads& v) const {
    if (basis.empty()) return;
    replace(
        q, [&](const TensorView& changed) { change_basis(context.backend, changed, q.view, basis.queries); });
    replace(k,
            [&](const TensorView& changed) { change_basis(context.backend, changed, k.view, basis.keys); });
    replace(v,
            [&](const TensorView& changed) { mix_heads(context.backend, changed, v.view, *basis.mixing); });
  }

  // `out` [T, heads * head_dim] in place.
  void leave(const TensorView& out) const {
    if (basis.empty()) return;
    Heads wide(context.backend, out.rows(), spec.heads, spec.head_dim),
        back(context.backend, out.rows(), spec.heads, spec.head_dim);
    const auto flat = [&](const Heads& heads) { return heads.storage.view(DType::kF32, out.shape); };
    context.backend.convert(flat(wide), out);
    mix_heads(context.backend, back.view, wide.view, *basis.mixing);
    context.backend.convert(out, flat(back));
  }

 private:
  template <class Fill>
  void replace(Heads& x, const Fill& fill) const {
    Heads changed(context.backend, x.view.shape[0], x.view.shape[1], x.view.shape[2]);
    fill(changed.view);
    x = std::move(changed);
  }
};

// out [T, heads * head_dim] *= sigmoid(gates), by way of `wide`.
void apply_gates(Backend& backend, const TensorView& gates, const Heads& wide, const TensorView& out) {
  const TensorView heads(out.pointer, out.dtype, wide.view.shape, out.device);
  backend.convert(wide.view, heads);
  backend.gated_activation(heads, gates, wide.view, Activation::kSigmoid);
}

// q, k and v of what their one linear gives, for each KV head its queries, its key and its value.
void project_groups(const ForwardContext& context, const BlockWeights& weights, const AttentionSpec& spec,
                    const TensorView& x, const TensorView& q, const TensorView& k, const TensorView& v,
                    const RowAdapters& adapters) {
  const std::int64_t rows = x.rows(), groups = spec.kv_heads, dim = spec.head_dim;
  const Heads all(context.backend, rows, groups, spec.group_rows());
  const PartOutput output{spec.query, all.storage.view(DType::kF32, {rows, groups * spec.group_rows()})};
  run_linears(context.backend, weights, x, {&output, 1}, adapters);
  std::int64_t first = 0;
  const auto take = [&](const TensorView& into, std::int64_t width) {
    TensorView from = all.view;  // rows stay as far from one another as they are
    from.pointer = from.as<float>() + first;
    from.shape = Shape{rows, groups, width};
    context.backend.convert(TensorView(into.pointer, DType::kF32, from.shape, into.device), from);
    first += width;
  };
  take(q, spec.queries_of_group() * dim);
  take(k, dim), take(v, dim);
}

}  // namespace

std::vector<SequenceRows> clip_sequences(const std::vector<SequenceRows>& sequences, std::int64_t first,
                                         std::int64_t count) {
  std::vector<SequenceRows> clipped;
  for (const SequenceRows& sequence : sequences) {
    const std::int64_t begin = std::max(sequence.first_row, first);
    const std::int64_t end = std::min(sequence.first_row + sequence.rows, first + count);
    if (begin >= end) continue;
    clipped.push_back(
        {begin - first, end - begin, sequence.context + begin - sequence.first_row, sequence.block_table});
  }
  return clipped;
}

void project(const ForwardContext& context, const BlockSpec& block, const BlockWeights& weights,
             const AttentionSpec& spec, const TensorView& x, std::span<const std::int32_t> positions,
             const TensorView& q, const TensorView& k, const TensorView& v, const RowAdapters& adapters) {
  const auto flat = [&](const TensorView& heads) {
    return TensorView(heads.pointer, DType::kF32, {x.rows(), heads.shape[1] * heads.shape[2]}, heads.device);
  };
  if (spec.shared_pages) {
    const PartOutput asked{spec.query, flat(q)};
    run_linears(context.backend, weights, x, {&asked, 1}, adapters);
    return normalize_and_rotate(context, weights, spec, spec.query_norm, spec.rope.table, q, positions,
                                block);
  }
  const PartOutput outputs[] = {{spec.query, flat(q)}, {spec.key, flat(k)}, {spec.value, flat(v)}};
  if (spec.grouped)
    project_groups(context, weights, spec, x, q, k, v, adapters);
  else
    run_linears(context.backend, weights, x, std::span(outputs).first(spec.value_is_key() ? 2 : 3), adapters);
  if (spec.value_is_key()) context.backend.convert(v, k);
  normalize_and_rotate(context, weights, spec, spec.query_norm, spec.query_table.value_or(spec.rope.table),
                       spec.gated ? half_of_heads(q, 0) : q, positions, block);
  if (spec.rope.of_keys)
    normalize_and_rotate(context, weights, spec, spec.key_norm, spec.rope.table, k, positions, block);
  else if (spec.key_norm)
    normalize(context, weights, *spec.key_norm, k, block);
  if (spec.value_norm) normalize(context, weights, *spec.value_norm, v, block);
}

void run_mixer(const MixerRun& run, const AttentionSpec& spec, const TensorView& x, const TensorView& inner) {
  const ForwardContext& context = run.context;
  const BlockSpec& block = context.spec.blocks.at(static_cast<std::size_t>(run.block));
  const float scale = spec.scale != 0 ? spec.scale : 1.0f / std::sqrt(static_cast<float>(spec.head_dim));
  AttentionProblem problem{spec.heads,  spec.kv_heads,   spec.head_dim, scale,
                           spec.window, context.compute, spec.softcap};
  problem.chunks = spec.chunks;
  if (spec.sinks) problem.sinks = vector_view(run.weights.tensors.at(static_cast<std::size_t>(*spec.sinks)));
  const PageBasis basis{context, spec, run.weights.kv_basis};
  // Later rows of a sequence never enter an earlier row's result, so keys of a chunk are stored just before
  // its queries run.
  for_fitting_rows(
      context.chunks, context.fitting.get(), x.rows(), spec.row_floats(),
      [&](std::int64_t first, std::int64_t count) {
        Heads asked(context.backend, count, spec.heads, spec.head_dim * (spec.gated ? 2 : 1));
        std::optional<Heads> k, v;  // none where the pages are another block's
        for (std::optional<Heads>* const own : {&k, &v})
          if (!spec.shared_pages) own->emplace(context.backend, count, spec.kv_heads, spec.head_dim);
        const auto from = static_cast<std::size_t>(run.first + first), many = static_cast<std::size_t>(count);
        project(context, block, run.weights, spec, x.row_slice(first, count),
                std::span(run.rows.positions).subspan(from, many), asked.view, k ? k->view : TensorView(),
                v ? v->view : TensorView(), run.adapters().from(first));
        std::optional<Heads> alone;  // queries without their gates
        if (spec.gated) {
          alone.emplace(context.backend, count, spec.heads, spec.head_dim);
          context.backend.convert(alone->view, half_of_heads(asked.view, 0));
        }
        Heads& q = alone ? *alone : asked;
        if (k) {
          basis.enter(q, *k, *v);
          context.backend.store_kv(run.pages, k->view, v->view,
                                   std::span(run.rows.slots).subspan(from, many));
        }
        const TensorView out = inner.row_slice(first, count);
        if (count == static_cast<std::int64_t>(run.rows.positions.size()))
          context.backend.attention(out, q.view, run.pages, run.rows.sequences, problem);
        else
          context.backend.attention(out, q.view, run.pages,
                                    clip_sequences(run.rows.sequences, run.first + first, count), problem);
        basis.leave(out);
        if (spec.gated) apply_gates(context.backend, half_of_heads(asked.view, 1), q, out);
      });
}

}  // namespace llmq

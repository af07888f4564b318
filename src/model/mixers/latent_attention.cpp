// inner = V attention([q_plain K | rope(q_turning)], [c | r], c) over pages of latents (LatentAttentionSpec).
//
// K and V of a head are the parts of the absorbed linear: a query is taken to the latent once, and nothing is
// ever made of the latents of other positions. So pages hold rank + rope channels for a position, a prefill
// and a step of decoding do the same products, and a row's bits do not depend on which of them it was in.
//
// Cost: a score is rank + rope products and not plain + rope, and so is a value: a few times the products of
// a long prefill, at 1 / (2 * heads) of what expanded keys and values would take in pages and read in a step.
#include <optional>
#include <vector>

#include "model/mixers/mixer.h"

namespace llmq {
namespace {

// Rows in memory of their own.
struct LatentRows {
  Buffer storage;
  TensorView view;
  LatentRows(Backend& backend, DType dtype, std::int64_t rows, std::int64_t width)
      : storage(backend.allocate(static_cast<std::size_t>(rows * width * element_bytes(dtype)))),
        view(storage.view(dtype, {rows, width})) {}
};

// Channels [first, first + count) of each row.
TensorView channels_of(const TensorView& rows, std::int64_t first, std::int64_t count) {
  TensorView some = rows;
  some.pointer = rows.as<char>() + first * element_bytes(rows.dtype);
  some.shape = Shape{rows.rows(), count};
  return some;
}

// Rows [T, heads * width] as [T * heads, width].
TensorView by_head(const TensorView& rows, std::int64_t heads) {
  return TensorView(rows.pointer, rows.dtype, {rows.rows() * heads, rows.cols() / heads}, rows.device);
}

// What stands between x and the products of the heads, for as many rows as x has.
struct LatentInputs {
  TensorView queries;  // compute dtype: x itself where there is no site of queries
  TensorView latent;   // compute dtype [T, rank], normalized
  TensorView turned;   // F32 [T, rope.dims], behind rope
};

class LatentRun {
 public:
  LatentRun(const MixerRun& run, const LatentAttentionSpec& spec)
      : run_(run),
        spec_(spec),
        backend_(run.context.backend),
        dtype_(activation_dtype(run.context.compute)) {}

  // Of rows [first, first + x.rows()) of the run.
  void make_inputs(std::int64_t first, const TensorView& x, const LatentInputs& into) const {
    const RowAdapters adapters = run_.adapters().from(first);
    const std::int64_t rows = x.rows();
    const LatentRows joint(backend_, DType::kF32, rows, spec_.row_dim());
    std::optional<LatentRows> narrow;
    std::vector<PartOutput> outputs = {{Part{spec_.joint}, joint.view}};
    if (spec_.narrow) {
      narrow.emplace(backend_, DType::kF32, rows, spec_.query_rank);
      outputs.push_back({Part{*spec_.narrow}, narrow->view});
    }
    run_linears(backend_, run_.weights, x, outputs, adapters);
    if (narrow) norm(*spec_.query_norm, narrow->view, into.queries);
    norm(spec_.latent_norm, channels_of(joint.view, 0, spec_.rank), into.latent);
    backend_.convert(into.turned, channels_of(joint.view, spec_.rank, spec_.rope.dims));
    turn(into.turned, 1, first);
  }

  // inner [T, heads * value_dim] of the compute dtype.
  void attend(std::int64_t first, const LatentInputs& from, const TensorView& inner) const {
    const std::int64_t rows = inner.rows();
    LatentRows asked(backend_, DType::kF32, rows, spec_.heads * spec_.row_dim());
    ask(first, from.queries, asked.view);
    store(first, from);
    const LatentRows seen(backend_, dtype_, rows, spec_.heads * spec_.row_dim());
    attention(first, asked.view, seen.view);
    const LatentRows given(backend_, DType::kF32, rows, spec_.heads * spec_.value_dim);
    products_of_heads(1, given.view, spec_.value_dim, 0, spec_.value_dim, seen.view, spec_.row_dim(),
                      spec_.rank);
    backend_.convert(inner, given.view);
  }

 private:
  void norm(NormId id, const TensorView& x, const TensorView& y) const {
    run_norm(backend_, run_.spec().at(id), run_.weights.at(id), x, y);
  }

  std::span<const std::int32_t> positions(std::int64_t first, std::int64_t rows) const {
    return std::span(run_.rows.positions)
        .subspan(static_cast<std::size_t>(run_.first + first), static_cast<std::size_t>(rows));
  }

  // rope of heads that lie row_stride apart, F32 [T * heads, rope.dims] in place.
  void turn(const TensorView& heads_of_rows, std::int64_t heads, std::int64_t first) const {
    const std::int64_t dims = spec_.rope.dims, rows = heads_of_rows.rows() / heads;
    TensorView heads_first = heads_of_rows;
    heads_first.shape = Shape{rows, heads, dims};
    const Shape angles{run_.context.positions, dims / 2};
    const RopeOnDevice& table = run_.context.ropes[spec_.rope.table];
    backend_.rope(heads_first, positions(first, rows), table.cosines.view(DType::kF32, angles),
                  table.sines.view(DType::kF32, angles), spec_.rope.pairs);
  }

  // Of every head, its part (0: plain, 1: value) of the absorbed linear times its channels of x, all in one
  // call: columns [h * y_width + y_first, ..) of y from columns [h * x_width, .. + x_count) of x.
  void products_of_heads(std::size_t part, const TensorView& y, std::int64_t y_width, std::int64_t y_first,
                         std::int64_t y_count, const TensorView& x, std::int64_t x_width,
                         std::int64_t x_count) const {
    std::vector<LinearCall> calls;
    for (std::int64_t head = 0; head < spec_.heads; ++head) {
      const LinearPart& own = run_.weights.at(Part{spec_.expand, 2 * static_cast<std::size_t>(head) + part});
      calls.push_back({channels_of(y, head * y_width + y_first, y_count),
                       channels_of(x, head * x_width, x_count),
                       own.weight.get(),
                       {}});
    }
    backend_.linears(calls);
  }

  // Queries of latents: F32 [T, heads * row_dim].
  void ask(std::int64_t first, const TensorView& x, const TensorView& asked) const {
    const std::int64_t rows = x.rows(), heads = spec_.heads, dims = spec_.rope.dims;
    const LatentRows q(backend_, DType::kF32, rows, heads * spec_.query_dim());
    const PartOutput output{Part{spec_.query}, q.view};
    run_linears(backend_, run_.weights, x, {&output, 1}, run_.adapters().from(first));
    const TensorView of_heads = by_head(q.view, heads), turning = channels_of(of_heads, spec_.plain, dims);
    turn(turning, heads, first);
    backend_.convert(channels_of(by_head(asked, heads), spec_.rank, dims), turning);
    const LatentRows plain(backend_, dtype_, rows, heads * spec_.plain);
    backend_.convert(by_head(plain.view, heads), channels_of(of_heads, 0, spec_.plain));
    products_of_heads(0, asked, spec_.row_dim(), 0, spec_.rank, plain.view, spec_.plain, spec_.plain);
  }

  // A latent row is key and value at once: of the value, what lies behind `rank` is never looked at.
  void store(std::int64_t first, const LatentInputs& from) const {
    const std::int64_t rows = from.latent.rows();
    const LatentRows row(backend_, DType::kF32, rows, spec_.row_dim());
    backend_.convert(channels_of(row.view, 0, spec_.rank), from.latent);
    backend_.convert(channels_of(row.view, spec_.rank, spec_.rope.dims), from.turned);
    const TensorView one_head(row.view.pointer, DType::kF32, {rows, 1, spec_.row_dim()}, row.view.device);
    backend_.store_kv(
        run_.pages, one_head, one_head,
        std::span(run_.rows.slots)
            .subspan(static_cast<std::size_t>(run_.first + first), static_cast<std::size_t>(rows)));
  }

  void attention(std::int64_t first, const TensorView& asked, const TensorView& seen) const {
    const AttentionProblem problem{spec_.heads, 1, static_cast<int>(spec_.row_dim()),
                                   spec_.scale, 0, run_.context.compute};
    const TensorView q(asked.pointer, DType::kF32, {asked.rows(), spec_.heads, spec_.row_dim()},
                       asked.device);
    if (asked.rows() == static_cast<std::int64_t>(run_.rows.positions.size()))
      backend_.attention(seen, q, run_.pages, run_.rows.sequences, problem);
    else
      backend_.attention(seen, q, run_.pages,
                         clip_sequences(run_.rows.sequences, run_.first + first, asked.rows()), problem);
  }

  const MixerRun& run_;
  const LatentAttentionSpec& spec_;
  Backend& backend_;
  DType dtype_;
};

template <class Work>
void each_rows(const MixerRun& run, const LatentAttentionSpec& spec, std::int64_t rows, const Work& work) {
  for_fitting_rows(run.context.chunks, run.context.fitting.get(), rows, spec.row_floats(), work);
}

}  // namespace

void run_mixer(const MixerRun& run, const LatentAttentionSpec& spec, const TensorView& x,
               const TensorView& inner) {
  const LatentRun latents(run, spec);
  Backend& backend = run.context.backend;
  const DType dtype = activation_dtype(run.context.compute);
  each_rows(run, spec, x.rows(), [&](std::int64_t first, std::int64_t count) {
    const TensorView part = x.row_slice(first, count);
    std::optional<LatentRows> queries;
    if (spec.queries) queries.emplace(backend, dtype, count, spec.query_rank);
    const LatentRows latent(backend, dtype, count, spec.rank),
        turned(backend, DType::kF32, count, spec.rope.dims);
    const LatentInputs inputs{queries ? queries->view : part, latent.view, turned.view};
    latents.make_inputs(first, part, inputs);
    latents.attend(first, inputs, inner.row_slice(first, count));
  });
}

bool run_tapped(const MixerRun& run, const LatentAttentionSpec& spec, const TensorView& x,
                std::span<const SiteId>, Tap& tap, TensorView& inner) {
  const LatentRun latents(run, spec);
  const auto place = [&](SiteId site) { return tap.place(run.spec().at(site), site, x.rows()); };
  const LatentRows turned(run.context.backend, DType::kF32, x.rows(), spec.rope.dims);
  const LatentInputs all{spec.queries ? place(*spec.queries) : x, place(spec.latent), turned.view};
  const auto rows_of = [&](std::int64_t first, std::int64_t count) {
    return LatentInputs{all.queries.row_slice(first, count), all.latent.row_slice(first, count),
                        all.turned.row_slice(first, count)};
  };
  each_rows(run, spec, x.rows(), [&](std::int64_t first, std::int64_t count) {
    latents.make_inputs(first, x.row_slice(first, count), rows_of(first, count));
  });
  if (spec.queries && tap.at(*spec.queries, all.queries) == Tap::Flow::kStop) return false;
  if (tap.at(spec.latent, all.latent) == Tap::Flow::kStop) return false;
  inner = place(spec.inner);
  each_rows(run, spec, x.rows(), [&](std::int64_t first, std::int64_t count) {
    latents.attend(first, rows_of(first, count), inner.row_slice(first, count));
  });
  return tap.at(spec.inner, inner) == Tap::Flow::kGoOn;
}

}  // namespace llmq

// y = sum of weight * output(act(gate) * up) over a row's experts, in rising order of the experts, and the
// shared one last: no sum depends on the batch. Or gate and up read weight * x, and the sum has no weights.
//
// Rows of one expert lie together: they are looked up from x, pass its linears and are added to their rows of
// y. All experts' linears of one stage are one call, so that a decode step, with a row or two for each, is
// three rounds of the workers.
#include "model/mixers/mixture.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "model/mixers/mixer.h"

namespace llmq {
namespace {

PlacedRows place(Backend& backend, DType dtype, std::int64_t rows, std::int64_t width) {
  PlacedRows placed;
  placed.buffer = backend.allocate(static_cast<std::size_t>(rows * width) *
                                   static_cast<std::size_t>(element_bytes(dtype)));
  placed.view = placed.buffer.view(dtype, {rows, width});
  return placed;
}

PlacedRows float_rows(Backend& backend, const TensorView& x, std::span<const std::int32_t> rows) {
  PlacedRows values = place(backend, DType::kF32, static_cast<std::int64_t>(rows.size()), x.cols());
  backend.embed(values.view, x, rows);
  return values;
}

PlacedRows of_type(Backend& backend, DType dtype, PlacedRows values) {
  if (dtype == DType::kF32) return values;
  PlacedRows rounded = place(backend, dtype, values.view.rows(), values.view.cols());
  backend.convert(rounded.view, values.view);
  return rounded;
}

// What a linear answers to all rows, on the host.
std::vector<float> host_answer(Backend& backend, const BlockWeights& weights, LinearId linear,
                               const TensorView& x) {
  const LinearPart& part = weights.at(Part{linear});
  const PlacedRows answer = place(backend, DType::kF32, x.rows(), part.weight->out_features);
  backend.linear(answer.view, x, *part.weight, vector_view(part.bias));
  std::vector<float> values(static_cast<std::size_t>(answer.view.shape.elements()));
  backend.download(values.data(), answer.view);
  return values;
}

// visit(expert, first row, rows) of those that have any, rising.
template <class Visit>
void each_expert(std::span<const ExpertSpec> experts, std::span<const std::size_t> first,
                 const Visit& visit) {
  for (std::size_t e = 0; e < experts.size(); ++e)
    if (first[e] != first[e + 1])
      visit(experts[e], static_cast<std::int64_t>(first[e]),
            static_cast<std::int64_t>(first[e + 1] - first[e]));
}

LinearCall call_of_rows(const BlockWeights& weights, Part part, const TensorView& y, const TensorView& x,
                        std::int64_t first, std::int64_t count) {
  const LinearPart& linear = weights.at(part);
  return {y.row_slice(first, count), x.row_slice(first, count), linear.weight.get(),
          vector_view(linear.bias)};
}

class MixtureRun {
 public:
  // h: the residual stream of the rows of x.
  MixtureRun(const MixerRun& run, const MixtureSpec& spec, const TensorView& x, const TensorView& h,
             const TensorView& y)
      : block_(run.context.spec.blocks.at(static_cast<std::size_t>(run.block))),
        weights_(run.weights),
        spec_(spec),
        backend_(run.context.backend),
        x_(x),
        h_(h),
        y_(y) {}

  void all() {
    backend_.clear(y_);
    RoutedRows routed = route_rows(backend_, block_, weights_, spec_, x_, h_);
    const PlacedRows x = routed_rows_of(backend_, spec_, x_, routed.rows, routed.weights);
    if (spec_.weighs_input) std::fill(routed.weights.begin(), routed.weights.end(), 1.0f);
    pass(spec_.experts, routed, x.view);
    if (!spec_.shared) return;
    RoutedRows every;
    every.rows.resize(static_cast<std::size_t>(x_.rows()));
    std::iota(every.rows.begin(), every.rows.end(), 0);
    every.weights = spec_.shared_gate ? sigmoids(host_answer(backend_, weights_, *spec_.shared_gate, x_))
                                      : std::vector<float>(every.rows.size(), 1.0f);
    every.first = {0, every.rows.size()};
    pass({&*spec_.shared, 1}, every, x_);
  }

 private:
  // `x` holds the rows of each expert, one expert's behind another's.
  void pass(std::span<const ExpertSpec> experts, const RoutedRows& routed, const TensorView& x) {
    const PlacedRows inner = inner_rows(backend_, weights_, experts, routed.first, spec_.activation, x),
                     given = place(backend_, DType::kF32, x.rows(), y_.cols());
    std::vector<LinearCall> calls;
    each_expert(experts, routed.first, [&](const ExpertSpec& expert, std::int64_t first, std::int64_t count) {
      calls.push_back(call_of_rows(weights_, {expert.output}, given.view, inner.view, first, count));
    });
    backend_.linears(calls);
    each_expert(experts, routed.first, [&](const ExpertSpec&, std::int64_t first, std::int64_t count) {
      const auto from = static_cast<std::size_t>(first), n = static_cast<std::size_t>(count);
      backend_.add_rows(y_, given.view.row_slice(first, count), std::span(routed.rows).subspan(from, n),
                        std::span(routed.weights).subspan(from, n));
    });
  }

  const BlockSpec& block_;
  const BlockWeights& weights_;
  const MixtureSpec& spec_;
  Backend& backend_;
  const TensorView& x_;
  const TensorView& h_;
  const TensorView& y_;
};

}  // namespace

RoutedRows route_rows(Backend& backend, const BlockSpec& block, const BlockWeights& weights,
                      const MixtureSpec& spec, const TensorView& x, const TensorView& h) {
  const auto on_host = [&](const std::optional<TensorId>& id) {
    return id ? weights.on_host(*id) : std::span<const float>();
  };
  const Routing routing{static_cast<std::int64_t>(spec.experts.size()),
                        spec.top_k,
                        spec.normalized,
                        spec.score,
                        on_host(spec.correction),
                        spec.groups,
                        spec.kept_groups,
                        spec.weight_scale,
                        spec.group_best,
                        on_host(spec.expert_scales)};
  if (!spec.router_norm)
    return route(host_answer(backend, weights, spec.router, x), routing, backend.workers());
  const PlacedRows own = place(backend, x.dtype, x.rows(), x.cols());
  run_norm(backend, block.at(*spec.router_norm), weights.at(*spec.router_norm), h, own.view);
  return route(host_answer(backend, weights, spec.router, own.view), routing, backend.workers());
}

PlacedRows rows_of(Backend& backend, const TensorView& x, std::span<const std::int32_t> rows) {
  return of_type(backend, x.dtype, float_rows(backend, x, rows));
}

PlacedRows scaled_rows_of(Backend& backend, const TensorView& x, std::span<const std::int32_t> rows,
                          std::span<const float> factors) {
  const PlacedRows plain = float_rows(backend, x, rows);
  PlacedRows scaled = place(backend, DType::kF32, plain.view.rows(), x.cols());
  std::vector<std::int32_t> own(rows.size());
  std::iota(own.begin(), own.end(), 0);
  backend.clear(scaled.view);  // 0 + factor * row is rounded once
  backend.add_rows(scaled.view, plain.view, own, factors);
  return of_type(backend, x.dtype, std::move(scaled));
}

PlacedRows routed_rows_of(Backend& backend, const MixtureSpec& spec, const TensorView& x,
                          std::span<const std::int32_t> rows, std::span<const float> weights) {
  return spec.weighs_input ? scaled_rows_of(backend, x, rows, weights) : rows_of(backend, x, rows);
}

PlacedRows inner_rows(Backend& backend, const BlockWeights& weights, std::span<const ExpertSpec> experts,
                      std::span<const std::size_t> first, Activation activation, const TensorView& x) {
  const std::int64_t rows = x.rows(), width = weights.at(experts.front().up).weight->out_features;
  PlacedRows inner = place(backend, x.dtype, rows, width);
  const PlacedRows gate = place(backend, DType::kF32, rows, width),
                   up = place(backend, DType::kF32, rows, width);
  std::vector<LinearCall> calls;
  each_expert(experts, first, [&](const ExpertSpec& expert, std::int64_t from, std::int64_t count) {
    calls.push_back(call_of_rows(weights, expert.gate, gate.view, x, from, count));
    calls.push_back(call_of_rows(weights, expert.up, up.view, x, from, count));
  });
  backend.linears(calls);
  backend.gated_activation(inner.view, gate.view, up.view, activation);
  return inner;
}

void run_mixer(const MixerRun& run, const MixtureSpec& spec, const TensorView& x, const TensorView& y) {
  for_fitting_rows(run.context.chunks, run.context.fitting.get(), x.rows(), spec.row_floats(),
                   [&](std::int64_t first, std::int64_t count) {
                     const TensorView in = x.row_slice(first, count), out = y.row_slice(first, count),
                                      h = spec.router_norm ? run.hidden.row_slice(run.first + first, count)
                                                           : TensorView();
                     MixtureRun(run, spec, in, h, out).all();
                   });
}

}  // namespace llmq

// y = sum of weight * output(act(gate) * up) over a row's experts, in rising order of the experts, and the
// shared one last: no sum depends on the batch.
//
// Rows of one expert lie together: they are looked up from x, pass its linears and are added to their rows of
// y. All experts' linears of one stage are one call, so that a decode step, with a row or two for each, is
// three rounds of the workers.
#include <numeric>
#include <vector>

#include "model/mixers/mixer.h"
#include "model/mixers/routing.h"

namespace llmq {
namespace {

class MixtureRun {
 public:
  MixtureRun(const MixerRun& run, const MixtureSpec& spec, const TensorView& x, const TensorView& y)
      : run_(run),
        spec_(spec),
        backend_(run.context.backend),
        dtype_(activation_dtype(run.context.compute)),
        x_(x),
        y_(y) {}

  void all() {
    backend_.clear(y_);
    const RoutedRows routed = route(
        host_answer(spec_.router),
        {static_cast<std::int64_t>(spec_.experts.size()), spec_.top_k, spec_.normalized}, backend_.workers());
    const Placed x = gathered(routed.rows);
    pass(spec_.experts, routed, spec_.width, x.view);
    if (!spec_.shared) return;
    RoutedRows every;
    every.rows.resize(static_cast<std::size_t>(x_.rows()));
    std::iota(every.rows.begin(), every.rows.end(), 0);
    every.weights = spec_.shared_gate ? sigmoids(host_answer(*spec_.shared_gate))
                                      : std::vector<float>(every.rows.size(), 1.0f);
    every.first = {0, every.rows.size()};
    pass({&*spec_.shared, 1}, every, spec_.shared_width, x_);
  }

 private:
  struct Placed {
    Buffer buffer;
    TensorView view;
  };
  Placed place(DType dtype, std::int64_t rows, std::int64_t width) {
    Placed placed;
    placed.buffer = backend_.allocate(static_cast<std::size_t>(rows * width) *
                                      static_cast<std::size_t>(element_bytes(dtype)));
    placed.view = placed.buffer.view(dtype, {rows, width});
    return placed;
  }

  // What a linear answers to all rows, on the host.
  std::vector<float> host_answer(LinearId linear) {
    const LinearPart& part = run_.weights.at(Part{linear});
    const Placed answer = place(DType::kF32, x_.rows(), part.weight->out_features);
    backend_.linear(answer.view, x_, *part.weight, vector_view(part.bias));
    std::vector<float> values(static_cast<std::size_t>(answer.view.shape.elements()));
    backend_.download(values.data(), answer.view);
    return values;
  }

  Placed gathered(std::span<const std::int32_t> rows) {
    const auto count = static_cast<std::int64_t>(rows.size());
    Placed values = place(DType::kF32, count, x_.cols());
    backend_.embed(values.view, x_, rows);
    if (dtype_ == DType::kF32) return values;
    Placed rounded = place(dtype_, count, x_.cols());
    backend_.convert(rounded.view, values.view);
    return rounded;
  }

  // `x` holds the rows of each expert, one expert's behind another's.
  void pass(std::span<const ExpertSpec> experts, const RoutedRows& routed, std::int64_t width,
            const TensorView& x) {
    const std::int64_t rows = x.rows();
    const Placed inner = place(dtype_, rows, width);
    {
      const Placed gate = place(DType::kF32, rows, width), up = place(DType::kF32, rows, width);
      std::vector<LinearCall> calls;
      each_expert(experts, routed, [&](const ExpertSpec& expert, std::int64_t first, std::int64_t count) {
        calls.push_back(call(expert.gate, gate.view, x, first, count));
        calls.push_back(call(expert.up, up.view, x, first, count));
      });
      backend_.linears(calls);
      backend_.gated_activation(inner.view, gate.view, up.view, spec_.activation);
    }
    const Placed given = place(DType::kF32, rows, y_.cols());
    std::vector<LinearCall> calls;
    each_expert(experts, routed, [&](const ExpertSpec& expert, std::int64_t first, std::int64_t count) {
      calls.push_back(call({expert.output}, given.view, inner.view, first, count));
    });
    backend_.linears(calls);
    each_expert(experts, routed, [&](const ExpertSpec&, std::int64_t first, std::int64_t count) {
      const auto from = static_cast<std::size_t>(first), n = static_cast<std::size_t>(count);
      backend_.add_rows(y_, given.view.row_slice(first, count), std::span(routed.rows).subspan(from, n),
                        std::span(routed.weights).subspan(from, n));
    });
  }

  // visit(expert, first row, rows) of those that have any, rising.
  template <class Visit>
  static void each_expert(std::span<const ExpertSpec> experts, const RoutedRows& routed, const Visit& visit) {
    for (std::size_t e = 0; e < experts.size(); ++e)
      if (const std::size_t first = routed.first[e], end = routed.first[e + 1]; first != end)
        visit(experts[e], static_cast<std::int64_t>(first), static_cast<std::int64_t>(end - first));
  }

  LinearCall call(Part part, const TensorView& y, const TensorView& x, std::int64_t first,
                  std::int64_t count) const {
    const LinearPart& linear = run_.weights.at(part);
    return {y.row_slice(first, count), x.row_slice(first, count), linear.weight.get(),
            vector_view(linear.bias)};
  }

  const MixerRun& run_;
  const MixtureSpec& spec_;
  Backend& backend_;
  const DType dtype_;
  const TensorView& x_;
  const TensorView& y_;
};

}  // namespace

void run_mixer(const MixerRun& run, const MixtureSpec& spec, const TensorView& x, const TensorView& y) {
  for_fitting_rows(run.context.chunks, run.context.fitting.get(), x.rows(), spec.row_floats(),
                   [&](std::int64_t first, std::int64_t count) {
                     const TensorView in = x.row_slice(first, count), out = y.row_slice(first, count);
                     MixtureRun(run, spec, in, out).all();
                   });
}

}  // namespace llmq

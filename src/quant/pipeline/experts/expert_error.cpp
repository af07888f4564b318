// What an expert gives in the end, beside what the original expert gives to the same rows:
//
//   error = sum_t |E_rounded(x_t) - E(x_t)|^2 / sum_t |E(x_t)|^2
//
// The rows are those that the router sends to it, of evenly spaced chunks of the samples
// (Samples::kForSearch); of an expert that has none there, all rows of these chunks. What came before the
// mixture is quantized by then, and both read it: the figure is of this expert alone. The original is as
// folds left it, which changes nothing of what it gives.
//
// Cost: the experts' linears are read once more; a run of the block up to its experts for as many of them as
// go at once, which lie in memory twice meanwhile.
#include <array>
#include <cmath>
#include <map>

#include "calibration/joined_sums.h"
#include "model/mixers/mixture.h"
#include "quant/pipeline/experts/mixture_quantizer.h"

namespace llmq {
namespace {

std::vector<float> given_by(Backend& backend, const BlockWeights& weights, const ExpertSpec& expert,
                            Activation activation, const TensorView& x) {
  const std::array<std::size_t, 2> first = {0, static_cast<std::size_t>(x.rows())};
  const PlacedRows inner = inner_rows(backend, weights, {&expert, 1}, first, activation, x);
  const LinearPart& output = weights.at(Part{expert.output});
  const std::int64_t width = output.weight->out_features;
  const Buffer buffer = backend.allocate(static_cast<std::size_t>(x.rows() * width) * sizeof(float));
  const TensorView y = buffer.view(DType::kF32, {x.rows(), width});
  backend.linear(y, inner.view, *output.weight, vector_view(output.bias));
  std::vector<float> values(static_cast<std::size_t>(y.shape.elements()));
  backend.download(values.data(), y);
  return values;
}

// An expert's linears as they were before they were rounded, to be exchanged with those that are.
using OriginalExpert = std::map<LinearId, BlockLinear>;

void exchange_linears(OriginalExpert& original, BlockWeights& weights) {
  for (auto& [id, linear] : original)
    for (std::size_t part = 0; part < linear.parts.size(); ++part)
      std::swap(weights.at(id).parts[part].weight, linear.parts[part].weight);
}

// What one chunk changed, and what it is: both sums of the error.
std::array<double, 2> error_sums(const std::vector<float>& rounded, const std::vector<float>& original) {
  double changed = 0, whole = 0;
  for (std::size_t i = 0; i < original.size(); ++i) {
    const double was = original[i], lost = rounded[i] - was;
    changed += lost * lost;
    whole += was * was;
  }
  return {changed, whole};
}

double relative(double changed, double whole) { return changed == 0 ? 0 : whole == 0 ? 1 : changed / whole; }

}  // namespace

std::vector<double> MixtureQuantizer::output_errors() {
  BlockWeights& weights = block_.weights.front();
  Backend& backend = block_.run.backend;
  const std::vector<std::int64_t> rows =
      stream_.routed_rows(block_.number, block_.weights, nullptr, Samples::kForSearch);
  std::vector<SeenExpert> experts;
  for (std::size_t e = 0; e < rows.size(); ++e) {
    const bool none = rows[e] == 0;
    experts.push_back({&mixture_.experts[e], none ? std::nullopt : std::optional(e), rows[e],
                       none ? static_cast<float>(std::sqrt(mean_square())) : 1});
  }
  const std::size_t at_once = block_.run.experts_at_once;
  ExactSums sums(2 * experts.size());
  for (std::size_t first = 0; first < experts.size(); first += at_once) {
    const auto batch = std::span(experts).subspan(first, std::min(at_once, experts.size() - first));
    std::vector<OriginalExpert> originals(batch.size());
    for (std::size_t i = 0; i < batch.size(); ++i)
      for (const LinearId id : batch[i].expert->linears()) {
        if (!block_.open(id)) continue;  // it is the original
        const LinearSpec& linear = block_.spec.at(id);
        const TensorView view(block_.works.at(id).weight.data(), DType::kF32,
                              {linear.out_features, linear.in_features});
        set_weight(backend, block_.run.plan.compute, linear, view, originals[i][id]);
        block_.works.erase(id);
      }
    stream_.each_expert_input(
        block_.number, block_.weights, batch, ExpertInput::kOfGateAndUp,
        [&](std::size_t i, const TensorView& x) {
          const auto given = [&] {
            return given_by(backend, weights, *batch[i].expert, mixture_.activation, x);
          };
          const std::vector<float> rounded = given();
          exchange_linears(originals[i], weights);
          sums.add(2 * (first + i), std::span<const double>(error_sums(rounded, given())));
          exchange_linears(originals[i], weights);
        },
        Samples::kForSearch);
  }
  const ZeroedNumbers<double> all = round_together(std::move(sums), block_.run.ranks());
  std::vector<double> errors;
  for (std::size_t e = 0; e < experts.size(); ++e) errors.push_back(relative(all[2 * e], all[2 * e + 1]));
  block_.run.clock.charge("losses");
  return errors;
}

}  // namespace llmq

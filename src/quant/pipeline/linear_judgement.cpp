#include "quant/pipeline/linear_judgement.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "device/named_range.h"
#include "quant/methods/float_groups.h"
#include "quant/methods/rtn.h"
#include "quant/methods/smoothquant/smooth_loss.h"
#include "quant/pipeline/weight_checks.h"

namespace llmq {

void LinearJudgement::judge(LinearWork& work, QuantizedMatrix& matrix, InputWithGram& input) {
  fill_report(work, matrix, input);
  keep_the_better(work, matrix, input);
}

void LinearJudgement::measure_rounding(InputWithGram& input, const std::vector<LinearId>& linears) {
  const NamedRange range(block_.run.backend, "losses of plain rounding");
  for (const LinearId id : linears) {
    LinearWork& work = block_.works.at(id);
    const LinearSpec& s = *work.spec;
    const QuantizedMatrix plain =
        round_to_nearest(work.original(), s.out_features, s.in_features, work.module->scheme,
                         block_.run.pool(), {block_.run.plan.floats.search, 0, {}});
    work.report.rtn_loss =
        sum_in_order(row_losses(plain, work.original(), input.gram, block_.run.pool(), work.in_scale));
    energy_[id] = output_energy(work.weight, s.out_features, s.in_features, input.gram, block_.run.pool());
  }
  block_.run.clock.charge("losses");
}

// In the units of the original output.
double LinearJudgement::loss_of(const LinearWork& work, const QuantizedMatrix& matrix, InputWithGram& input) {
  if (work.out_scale.empty()) return matrix.loss;
  std::vector<double> loss = row_losses(matrix, work.weight, input.gram, block_.run.pool());
  for (std::size_t r = 0; r < loss.size(); ++r)
    loss[r] *= static_cast<double>(work.out_scale[r]) * work.out_scale[r];
  return sum_in_order(loss);
}

void LinearJudgement::fill_report(LinearWork& work, const QuantizedMatrix& matrix, InputWithGram& input) {
  ModuleReport& report = work.report;
  report.module = work.module->module;
  report.scheme = work.module->scheme;
  report.loss = loss_of(work, matrix, input);
  const bool as_rounding =
      !chooses_codes(*block_.run.plan.traits, report.scheme) ||
      (work.in_scale.empty() && !block_.run.plan.traits->factorizes && !(report.loss < report.rtn_loss));
  report.method = as_rounding ? "rtn" : block_.run.plan.method;
  report.lambda = matrix.notes.lambda;
  if (matrix.notes.lambda_raises > 0)
    block_.run.report.fallbacks.push_back(
        {report.module,
         fmt::format("its Gram matrix is not positive definite: lambda was raised {} times, to {:.3g}",
                     matrix.notes.lambda_raises, matrix.notes.lambda)});
  if (matrix.notes.dead_channels > 0)
    block_.run.report.warnings.push_back(fmt::format("{}: {} of {} channels were never active in calibration",
                                                     report.module, matrix.notes.dead_channels,
                                                     matrix.in_features));
  for (const std::string& warning : matrix.notes.warnings)
    block_.run.report.warnings.push_back(report.module + ": " + warning);
  measure(work, matrix);
}

void LinearJudgement::measure(LinearWork& work, const QuantizedMatrix& matrix) {
  const double energy = energy_[work.spec->id];
  work.report.relative_error = energy == 0 ? 0 : work.report.loss / energy;
  work.report.weight_error = weight_error(work, matrix, block_.run.pool());
}

void LinearJudgement::keep_the_better(LinearWork& work, QuantizedMatrix& matrix, InputWithGram& input) {
  ModuleReport& report = work.report;
  if (!(report.loss > report.rtn_loss)) return;
  const LinearSpec& s = *work.spec;
  QuantizedMatrix plain =
      round_to_nearest(work.weight, s.out_features, s.in_features, work.module->scheme, block_.run.pool(),
                       {block_.run.plan.floats.search, block_.global_scale(work.spec->id), {}});
  plain.loss = sum_in_order(row_losses(plain, work.weight, input.gram, block_.run.pool()));
  const double loss = loss_of(work, plain, input);
  if (!(loss < report.loss)) return;
  block_.run.report.fallbacks.push_back(
      {report.module, fmt::format("{} loses {:.3e}, plain rounding {:.3e}: it is rounded plainly",
                                  report.method, report.loss, loss)});
  report.loss = loss;
  report.method = "rtn";
  matrix = std::move(plain);
  measure(work, matrix);
}

double LinearJudgement::input_error(const LinearWork& work, const SeenInput& seen) const {
  if (work.module->scheme.activation_scale == ActivationScale::kNone) return 0;
  ScaleProblem problem;
  problem.readers = {{work.weight, work.spec->out_features, work.module->scheme}};
  problem.stats = &seen.stats;
  problem.rows = &seen.rows;
  const std::vector<float> ones(static_cast<std::size_t>(work.spec->in_features), 1.0f);
  return SmoothLossFunction(problem, block_.run.pool()).input_loss(ones);
}

void LinearJudgement::set_input_scale(QuantizedMatrix& matrix, const SeenInput& seen,
                                      const std::string& module) const {
  if (!matrix.scheme.calibrates_inputs()) return;
  const std::span<const float> largest = seen.stats.absolute_max();
  const float top = block_.run.plan.activations.whole
                        ? *std::max_element(largest.begin(), largest.end())
                        : seen.rows.magnitude_at(block_.run.plan.activations.percentile);
  if (matrix.scheme.scale_form() == ScaleForm::kTwoLevel) {
    // of an expert that no row was sent to, the rows are those of its layer
    matrix.input_scale =
        float_input_global(top == 0 ? seen.rows.magnitude_at(100) : top, block_.run.plan.floats.power_of_two);
    return;
  }
  matrix.input_scale = stored_scale(input_scale(matrix.scheme.weight_type, top), matrix.scheme.scale_dtype);
  if (!std::isfinite(matrix.input_scale))
    fail(ErrorKind::kUnsupported, {fmt::format("its inputs reach {:g}, which needs a scale beyond {}'s range",
                                               top, dtype_row(matrix.scheme.scale_dtype).name),
                                   block_.run.source.checkpoint().path().string(), module,
                                   "round them per token, or give a BF16 checkpoint"});
}

}  // namespace llmq

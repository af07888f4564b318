// A block whose weights are rounded to nearest, one linear after another: nothing is run through it.
#include "quant/methods/rtn.h"
#include "quant/pipeline/block_quantizer.h"
#include "quant/pipeline/weight_checks.h"

namespace llmq {
namespace {

void round_linear(QuantizeRun& run, const LinearSpec& linear, const PlannedModule& planned) {
  LinearWork work;
  work.weight = load_planned_weight(run, linear);
  run.clock.charge("reading");
  QuantizedMatrix matrix =
      round_to_nearest(work.original(), linear.out_features, linear.in_features, planned.scheme, run.pool());
  check_scales(matrix, linear.module, run.source.checkpoint().path().string());
  work.report.module = linear.module;
  work.report.scheme = planned.scheme;
  work.report.method = "rtn";
  work.report.weight_error = weight_error(work, matrix, run.pool());
  work.report.relative_error = work.report.weight_error * work.report.weight_error;
  work.report.scales = scale_histogram(matrix.scales);
  run.clock.charge("rounding");
  run.writing.add_quantized(linear.module, std::move(matrix));
  run.clock.charge("writing");
  run.report.modules.push_back(work.report);
  if (run.on_linear) run.on_linear(planned, work.report);
}

}  // namespace

void quantize_block_by_rounding(QuantizeRun& run, int block) {
  for (const LinearSpec& linear : run.spec.blocks[static_cast<std::size_t>(block)].linears) {
    const auto planned = run.planned.find(linear.module);
    if (planned == run.planned.end()) continue;
    round_linear(run, linear, *planned->second);
    // Else the next linear, of another size, would lie between the holes that this one leaves.
    return_freed_memory();
  }
}

void round_tower(QuantizeRun& run) {
  for (const PlannedModule& planned : run.plan.tower) {
    LinearSpec linear;
    linear.module = planned.module;
    linear.weight.tensor = planned.module + ".weight";
    linear.out_features = planned.out_features, linear.in_features = planned.in_features;
    linear.parts = {linear.out_features};
    round_linear(run, linear, planned);
    return_freed_memory();
  }
}

}  // namespace llmq

// A block whose weights are rounded to nearest, one linear after another: nothing is run through it.
//
// Of several ranks each rounds what it lacks of the block.
//
// Where scales have two levels, the linears that an engine fuses are read once more before, for the largest
// weight in all of them.
#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "export/formats/fused_linears.h"
#include "quant/methods/rtn.h"
#include "quant/pipeline/block_quantizer.h"
#include "quant/pipeline/weight_checks.h"

namespace llmq {
namespace {

void round_linear(QuantizeRun& run, const LinearSpec& linear, const PlannedModule& planned,
                  float global_scale) {
  LinearWork work;
  work.weight = load_planned_weight(run, linear);
  const FloatGroupOptions& floats = run.plan.floats;
  if (global_scale == 0 && planned.scheme.scale_form() == ScaleForm::kTwoLevel)
    global_scale = float_group_global(largest_magnitude(work.original(), run.pool()), floats.search,
                                      floats.power_of_two);
  run.clock.charge("reading");
  QuantizedMatrix matrix =
      round_to_nearest(work.original(), linear.out_features, linear.in_features, planned.scheme, run.pool(),
                       {run.plan.floats.search, global_scale, {}});
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

bool is_to_do(const QuantizeRun& run, const std::string& module) {
  return run.planned.count(module) != 0 && run.quantizes(module);
}

// Of the linears that are fused with others, by what they are fused to; where one of them is to be done, all
// are looked at.
std::map<std::string, float> shared_global_scales(QuantizeRun& run, const BlockSpec& block) {
  std::map<std::string, float> largest;
  std::set<std::string> wanted;
  for (const LinearSpec& linear : block.linears)
    if (is_to_do(run, linear.module)) wanted.insert(fused_linear(linear.module, run.names).module);
  for (const LinearSpec& linear : block.linears) {
    const auto planned = run.planned.find(linear.module);
    if (planned == run.planned.end() || planned->second->scheme.scale_form() != ScaleForm::kTwoLevel)
      continue;
    const FusedLinear fused = fused_linear(linear.module, run.names);
    if (fused.parts == 1 || wanted.count(fused.module) == 0) continue;
    float& of_all = largest[fused.module];
    const std::size_t warnings = run.report.warnings.size();  // they come when it is rounded
    of_all = std::max(of_all, largest_magnitude(load_planned_weight(run, linear), run.pool()));
    run.report.warnings.resize(warnings);
    return_freed_memory();
  }
  for (auto& [name, value] : largest)
    value = float_group_global(value, run.plan.floats.search, run.plan.floats.power_of_two);
  run.clock.charge("reading");
  return largest;
}

}  // namespace

void quantize_block_by_rounding(QuantizeRun& run, int block) {
  const BlockSpec& spec = run.spec.blocks[static_cast<std::size_t>(block)];
  const std::map<std::string, float> shared = shared_global_scales(run, spec);
  for (const LinearSpec& linear : spec.linears) {
    if (!is_to_do(run, linear.module)) continue;
    const auto planned = run.planned.find(linear.module);
    const auto found = shared.find(fused_linear(linear.module, run.names).module);
    round_linear(run, linear, *planned->second, found == shared.end() ? 0 : found->second);
    // Else the next linear, of another size, would lie between the holes that this one leaves.
    return_freed_memory();
  }
}

void round_tower(QuantizeRun& run) {
  for (const PlannedModule& planned : run.plan.tower) {
    if (!is_to_do(run, planned.module)) continue;
    LinearSpec linear;
    linear.module = planned.module;
    linear.weight.tensor = planned.module + ".weight";
    linear.out_features = planned.out_features, linear.in_features = planned.in_features;
    linear.parts = {linear.out_features};
    round_linear(run, linear, planned, 0);
    return_freed_memory();
  }
}

}  // namespace llmq

#include "quant/pipeline/block_state.h"

#include <algorithm>

#include <fmt/format.h>

#include "export/formats/fused_linears.h"
#include "quant/methods/float_groups.h"
#include "quant/pipeline/block_weights.h"

namespace llmq {

namespace {

// v and up may grow by a later fold, when q, k and gate are written: E4M3 has 2^15 between its normal
// numbers, and 2^6 of it is kept for them. A weight that needs more is cut, and a warning says so.
constexpr float kRoomToFold = 64;

}  // namespace

BlockState::BlockState(QuantizeRun& of, int block)
    : run(of), number(block), spec(of.spec.blocks[static_cast<std::size_t>(block)]) {
  weights = load_on_devices(of, block, {});
}

std::vector<LinearId> BlockState::at_work(SiteId site) const {
  std::vector<LinearId> ids;
  for (const LinearId id : spec.at(site).readers)
    if (works.count(id) != 0) ids.push_back(id);
  return ids;
}

bool BlockState::open(LinearId id) {
  const LinearSpec& linear = spec.at(id);
  const auto planned = run.planned.find(linear.module);
  if (planned == run.planned.end()) return false;
  LinearWork work;
  work.spec = &linear;
  work.module = planned->second;
  work.weight = load_planned_weight(run, linear);
  for (const auto& [site, s] : moved) Fold(run, spec, spec.at(site)).take_part(s, work);
  works.insert_or_assign(id, std::move(work));
  run.clock.charge("reading");
  return true;
}

void BlockState::load(LinearId id) {
  const LinearSpec& linear = spec.at(id);
  if (open(id)) {
    put_on_devices(works.at(id).weight, id);
    load_biases(linear);
  } else {
    const Lease lease = hold_weight(run, linear);
    on_each_device([&](Backend& backend, BlockWeights& on) {
      on.at(id) = prepare_linear(backend, run.plan.compute, run.source, linear, run.options.allow_nonfinite);
    });
  }
  run.clock.charge("reading");
}

void BlockState::load_output(LinearId id) {
  if (is_planned(id))
    load_biases(spec.at(id));
  else
    load(id);
}

void BlockState::lend(LinearId id) {
  if (!open(id)) return;  // it is there
  put_on_devices(works.at(id).weight, id);
  works.erase(id);
}

void BlockState::take_back(LinearId id) {
  if (!is_planned(id)) return;
  on_each_device([&](Backend&, BlockWeights& on) { on.at(id) = {}; });
  load_biases(spec.at(id));
}

void BlockState::load_biases(const LinearSpec& linear) {
  on_each_device([&](Backend& backend, BlockWeights& on) {
    load_bias(backend, run.source, linear, run.options.allow_nonfinite, on.at(linear.id));
  });
}

void BlockState::put_on_devices(const QuantizedMatrix& matrix, LinearId id) {
  if (matrix.scheme.activation_scale != ActivationScale::kNone) {
    on_each_device([&](Backend& backend, BlockWeights& on) {
      set_weight(backend, run.plan.compute, spec.at(id), matrix, on.at(id));
    });
    return;
  }
  ZeroedNumbers<float> value(matrix.codes.size());
  dequantize(matrix, value, run.pool());
  put_on_devices(value, id);
}

void BlockState::put_on_devices(std::span<const float> weight, LinearId id) {
  const LinearSpec& linear = spec.at(id);
  const TensorView view(weight.data(), DType::kF32, {linear.out_features, linear.in_features});
  on_each_device([&](Backend& backend, BlockWeights& on) {
    set_weight(backend, run.plan.compute, linear, view, on.at(id));
  });
}

void BlockState::warn_of_cut_weights(const LinearWork& work, float global) {
  const float largest = largest_magnitude(work.weight, run.pool()), reach = float_group_reach(global);
  if (largest <= reach || !warned_of_cuts_.insert(work.spec->module).second) return;
  run.report.warnings.push_back(
      fmt::format("{}: its largest weight is {:.3g}, and {:.3g} is the largest that the global scale of "
                  "{} reaches: it is cut; a scheme without a global scale keeps it",
                  work.spec->module, largest, reach, fused_linear(work.spec->module, run.names).module));
}

float BlockState::global_scale(LinearId id) {
  const LinearWork& work = works.at(id);
  if (work.module->scheme.scale_form() != ScaleForm::kTwoLevel) return 0;
  const std::string fused = fused_linear(work.spec->module, run.names).module;
  if (const auto known = global_scales.find(fused); known != global_scales.end()) {
    if (run.plan.traits->folds) warn_of_cut_weights(work, known->second);
    return known->second;
  }
  float largest = 0;
  for (const auto& [other, beside] : works)
    if (beside.module->scheme.scale_form() == ScaleForm::kTwoLevel &&
        fused_linear(beside.spec->module, run.names).module == fused)
      largest = std::max(largest, largest_magnitude(beside.weight, run.pool()));
  if (run.plan.traits->folds) largest *= kRoomToFold;
  return global_scales[fused] =
             float_group_global(largest, run.plan.floats.search, run.plan.floats.power_of_two);
}

void BlockState::release(const SublayerSpec& part) {
  for (BlockWeights& on : weights)
    for (const LinearId id : linears_of(spec, part)) on.at(id) = {};
}

std::vector<LinearId> linears_of(const BlockSpec& block, const SublayerSpec& part) {
  std::vector<LinearId> ids;
  for (const SiteId site : part.sites)
    ids.insert(ids.end(), block.at(site).readers.begin(), block.at(site).readers.end());
  return ids;
}

}  // namespace llmq

#include "job/forms/packed_form.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "base/parent_path.h"
#include "base/resident_memory.h"
#include "job/forms/packed_documents.h"
#include "job/input_files.h"
#include "quant/mixed_precision/mixed_precision.h"
#include "quant/mixed_precision/sensitivity.h"
#include "quant/plan/disk_reads.h"
#include "quant/plan/ranks/measuring_work.h"
#include "ranks/agreement.h"

namespace llmq {
namespace {

// "mixed" where linears have different ones.
std::string scheme_text(const Plan& plan) {
  if (plan.modules.empty()) return "none";
  for (const PlannedModule& module : plan.modules)
    if (!(module.scheme == plan.modules.front().scheme)) return "mixed";
  return plan.modules.front().scheme.text();
}

PlannedDevices where_it_runs(const JobSettings& settings) {
  PlannedDevices planned = planned_devices(settings.devices);
  planned.joining_bytes = settings.ranks().joining_bytes();
  planned.ranks = settings.ranks().size();
  return planned;
}

}  // namespace

PackedForm::PackedForm(const JobInputs& inputs)
    : in_(inputs),
      made_(with_costs(make_plan(in_.recipe, in_.model.checkpoint, in_.model.spec, in_.settings.compute,
                                 in_.settings.backend().threads(), in_.settings.memory_limit,
                                 where_it_runs(in_.settings)))) {}

std::unique_ptr<const PackedForm::Made> PackedForm::with_costs(const Plan& plan) const {
  const LoadedModel& model = in_.model;
  return std::unique_ptr<const Made>(
      new Made{plan, estimate_costs(plan, model.checkpoint, model.spec, in_.settings.backend().threads(),
                                    companion_bytes(model.checkpoint, in_.model_io))});
}

PlanOutline PackedForm::outline() const {
  const auto& [plan, costs] = *made_;
  PlanOutline outline;
  outline.method = plan.method;
  outline.scheme = scheme_text(plan);
  outline.format = plan.format;
  outline.modules = plan.modules.size();
  outline.calibrates = plan.needs_calibration || plan.target_bits;
  outline.chooses_bits = plan.target_bits.has_value();
  outline.flops = costs.flops;
  outline.bytes_in = costs.bytes_in;
  outline.bytes_written = costs.bytes_written();
  outline.peak_bytes = costs.peak_bytes;
  outline.warnings = plan.warnings;
  return outline;
}

TimePrediction PackedForm::predict() const {
  return predict_time(made_->plan, made_->costs, in_.model.checkpoint, in_.model.spec, in_.settings.backend(),
                      in_.scratch, parent_of(in_.recipe.output));
}

RankShares PackedForm::shares() const {
  const Plan& plan = made_->plan;
  const auto shard = static_cast<std::uint64_t>(
      in_.recipe.shard_bytes.value_or(static_cast<std::int64_t>(OutputTarget().shard_bytes)));
  RankShares shares;
  shares.chunks = plan.needs_calibration ? plan.chunks() : 0;
  shares.shards =
      static_cast<std::int64_t>(std::max<std::uint64_t>(1, ceil_div(made_->costs.bytes_out, shard)));
  shares.dealt_rounding = dealt_rounding(plan, in_.model.spec);
  if (!plan.target_bits) return shares;
  const MeasuringWork measuring = measuring_work(plan, in_.model.spec);
  shares.measured_chunks = measured_chunks(plan);
  shares.measured_by_samples = measuring.by_samples / measuring.operations();
  shares.measured_dealt = measuring.dealt / measuring.operations();
  shares.sample_chunks = plan.chunks();
  return shares;
}

RankCosts PackedForm::over_ranks(int ranks) const {
  return llmq::over_ranks(made_->plan, in_.model.checkpoint, in_.model.spec, in_.settings.backend().threads(),
                          ranks);
}

std::vector<ReadPass> PackedForm::tensor_reads() const {
  return read_passes(made_->plan, in_.model.checkpoint, in_.model.spec,
                     {report_.resumed_blocks, measured_before_});
}

Json PackedForm::choose_bits(const CalibrationSet& calibration, const Json& known) {
  const Plan& asked = made_->plan;
  if (!asked.target_bits) return {};
  Ranks& ranks = in_.settings.ranks();
  find_together(ranks, [&] {
    if (in_.allow_nonfinite)
      fail(ErrorKind::kUnsupported, {"weights that are not finite cannot be measured",
                                     {},
                                     "--allow-nonfinite",
                                     "leave out --target-bits, or repair the checkpoint"});
  });
  const LoadedModel& model = in_.model;
  Backend& backend = in_.settings.backend();
  std::optional<std::vector<MeasuredGroup>> measured = read_measured(known, asked);
  measured_before_ = measured.has_value();
  if (!measured)
    measured = measure_candidates(asked, model.checkpoint, model.spec, calibration, backend,
                                  in_.settings.on_step, ranks);
  begin_together(ranks, [&] {
    made_ = with_costs(plan_with_bits(asked, choose_precision(asked, model.spec, *measured, model.checkpoint),
                                      in_.recipe.source, model.checkpoint, model.spec, backend.threads(),
                                      in_.settings.memory_limit));
  });
  return measured_json(*measured);
}

void PackedForm::open(const OutputTarget& target) {
  beside_ = parent_of(target.directory);
  const Plan& plan = made_->plan;
  OutputTarget cut = target;
  if (in_.recipe.shard_bytes) cut.shard_bytes = static_cast<std::uint64_t>(*in_.recipe.shard_bytes);
  writer_ = open_writer(in_.io, plan.format, cut, in_.model.checkpoint, in_.model.spec, plan.packed(),
                        plan.ignored, {plan.kv_cache, plan.rotated});
}

void PackedForm::write(const CalibrationSet& calibration, JobOutcome& o) {
  const Plan& plan = made_->plan;
  const std::vector<std::shared_ptr<Backend>>& devices = in_.settings.devices;
  PipelineOptions pipeline;
  pipeline.allow_nonfinite = in_.allow_nonfinite;
  pipeline.io = &in_.scratch;
  pipeline.scratch_directory = beside_;
  pipeline.further_devices.assign(devices.begin() + 1, devices.end());
  pipeline.on_step = [this](const std::string&, const std::string&) { in_.settings.on_step(); };
  report_ = run_pipeline(plan, in_.model.checkpoint, in_.model.spec, calibration, in_.settings.backend(),
                         *writer_, pipeline);
  o.peak_rss_bytes = peak_resident_bytes();
  for (const std::shared_ptr<Backend>& device : devices)
    o.peak_device_bytes = std::max(o.peak_device_bytes, device->peak_bytes());
  o.predicted_part = report_.seconds;
  o.resumed_blocks = report_.resumed_blocks;
  o.fallbacks = report_.fallbacks;
  o.warnings = report_.warnings;
  if (plan.mixed) {
    o.mixed = plan.mixed->to_json();
    o.mixed["measured_before"] = measured_before_;
  }
  o.facts.bytes_out = writer_->bytes();
  o.facts.bits_per_weight = plan.bits_per_weight();
  o.facts.bits_per_weight_total =
      8.0 * static_cast<double>(writer_->bytes()) / static_cast<double>(in_.model.spec.parameters());
  o.facts.digest = writer_->complete();
}

std::string PackedForm::publish(const JobOutcome& outcome, const ManifestText& manifest, bool met) {
  return writer_->publish(packed_documents(made_->plan, made_->costs, report_, outcome), manifest, met);
}

}  // namespace llmq

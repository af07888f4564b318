#include "job/forms/gguf_form.h"

#include "base/error.h"
#include "base/log.h"
#include "base/parent_path.h"
#include "base/resident_memory.h"
#include "base/seconds_since.h"
#include "export/formats/output_format.h"
#include "quant/pipeline/imatrix_collection.h"
#include "quant/plan/gguf_time.h"
#include "ranks/agreement.h"

namespace llmq {
namespace {

constexpr std::size_t kTensorsPerSample = 8;  // about a block

Json tensors_json(const GgufWritten& written) {
  Json list = Json::array();
  for (const GgufWritten::Tensor& tensor : written.tensors)
    list.push_back(Json::object({{"tensor", Json(tensor.name)},
                                 {"type", Json(dtype_row(tensor.dtype).name)},
                                 {"importance", Json(tensor.weighted)}}));
  return list;
}

PlannedDevices shared_by(const JobSettings& settings) {
  PlannedDevices planned;
  planned.ranks = settings.ranks().size();
  planned.joining_bytes = settings.ranks().joining_bytes();
  planned.own_products = own_products(settings.devices);
  return planned;
}

}  // namespace

GgufForm::GgufForm(const JobInputs& inputs)
    : in_(inputs),
      plan_(make_gguf_plan(in_.model_io, in_.recipe, in_.model.checkpoint, in_.model.spec,
                           in_.settings.compute, in_.settings.memory_limit, shared_by(in_.settings))),
      costs_(estimate_costs(plan_, in_.model.checkpoint, in_.model.spec)),
      tensor_reads_(costs_.reads) {}

PlanOutline GgufForm::outline() const {
  PlanOutline outline;
  outline.method = plan_.method;
  outline.scheme = gguf_type_name(*plan_.file_type);
  outline.format = kGgufFormat;
  outline.modules = plan_.tensors.size();
  outline.calibrates = plan_.needs_calibration();
  outline.flops = costs_.flops;
  outline.bytes_in = costs_.bytes_in;
  outline.bytes_written = costs_.bytes_out;
  outline.peak_bytes = costs_.peak_bytes;
  outline.warnings = plan_.warnings;
  return outline;
}

TimePrediction GgufForm::predict() const {
  return predict_gguf_time(plan_, in_.model_io, in_.model.checkpoint, in_.model.spec, in_.settings.backend(),
                           in_.scratch, parent_of(in_.recipe.output));
}

RankShares GgufForm::shares() const {
  RankShares shares;
  shares.one_file = true;
  shares.chunks = plan_.needs_calibration() ? plan_.forward().chunks() : 0;
  return shares;
}

RankCosts GgufForm::over_ranks(int ranks) const {
  return llmq::over_ranks(plan_, in_.model.checkpoint, in_.model.spec, ranks);
}

// What the file says of itself, and the matrix that weighs its errors.
void GgufForm::identify(Json& job, const std::function<std::string(const Path&)>& sha256) const {
  job["recipe"]["gguf"].erase("imatrix_out");
  job["name"] = in_.recipe.model;
  job["allow_nonfinite"] = false;  // they are refused whatever is asked
  const bool file = plan_.importance != "none" && !plan_.needs_calibration();
  job["importance"] = file ? sha256(plan_.importance) : plan_.importance;
}

void GgufForm::check_target(const OutputTarget& target) const {
  if (in_.recipe.shard_bytes) return;  // open() knows the names of the files
  first_begins(in_.settings.ranks(),
               [&] { check_gguf_destination(in_.io, target, in_.model.checkpoint.path()); });
}

void GgufForm::open(const OutputTarget& target) {
  GgufRequest request;
  request.target = target;
  request.name = in_.recipe.model;
  request.model_io = &in_.model_io;
  request.file_type = plan_.file_type;
  request.asked_types = plan_.asked_types;
  request.license = in_.recipe.card.license;
  request.quantized_by = in_.recipe.card.quantized_by;
  request.weighted = plan_.importance != "none";
  request.search = plan_.search;
  request.part_bytes = static_cast<std::uint64_t>(in_.recipe.shard_bytes.value_or(0));
  request.on_tensor = [this](const std::string& tensor) { begin_tensor(tensor); };
  output_.emplace(in_.io, in_.model.checkpoint, in_.model.spec, std::move(request));
  tensor_reads_ = gguf_read_passes(plan_, in_.model.checkpoint, in_.model.spec,
                                   output_->importance().has_value(), output_->finished_tensors());
}

void GgufForm::begin_tensor(const std::string& tensor) {
  in_.settings.on_step();
  memory_.look();
  if (begun_ % kTensorsPerSample == 0) memory_.mark();
  ++begun_;
  progress_->advance(1, fmt::format("{}/{} {}", begun_, plan_.tensors.size(), tensor), "", begun_ % 64 == 0);
}

// Of the calibration text, or of a file; none without. What an interrupted run collected is not collected
// again.
std::optional<Imatrix> GgufForm::importance(const CalibrationSet& calibration) {
  if (plan_.importance == "none") return std::nullopt;
  if (!plan_.needs_calibration()) return load_imatrix(in_.io, plan_.importance);
  if (!output_->importance()) {
    const std::size_t blocks = in_.model.spec.blocks.size();
    Progress progress("importance", static_cast<double>(blocks));
    ImportanceOptions options{
        in_.settings.compute, plan_.chunk_tokens, plan_.keep_inputs, {}, &in_.settings.ranks()};
    options.on_block = [&](int block) {
      in_.settings.on_step();
      memory_.look();
      memory_.mark();
      progress.advance(1, fmt::format("block {}/{}", block + 1, blocks), "", true);
    };
    const CalibrationKernels kernels({&in_.settings.backend()});
    Imatrix imatrix = collect_importance(in_.model.checkpoint, in_.model.spec, calibration,
                                         in_.settings.backend(), options);
    kernels_ = kernels.chosen();
    imatrix.datasets = plan_.calibration.text;
    output_->keep_importance(std::move(imatrix));
  }
  if (!plan_.imatrix_out.empty() && in_.settings.ranks().rank() == 0)
    save_imatrix(in_.io, plan_.imatrix_out, *output_->importance());
  return output_->importance();
}

void GgufForm::write(const CalibrationSet& calibration, JobOutcome& o) {
  const auto start = std::chrono::steady_clock::now();
  o.resumed_blocks = output_->resumed_blocks();
  progress_ = std::make_unique<Progress>("gguf", static_cast<double>(plan_.tensors.size()));
  const std::optional<Imatrix> weights = importance(calibration);
  return_freed_memory();
  written_ = output_->write(weights ? &*weights : nullptr, in_.settings.backend().workers());
  progress_.reset();
  memory_.mark();
  o.predicted_part = seconds_since(start);
  o.peak_rss_bytes = peak_resident_bytes();
  o.peak_device_bytes = in_.settings.backend().peak_bytes();
  o.warnings = plan_.warnings;
  if (written_.files.size() > 1)  // which loaders are given
    o.output = (parent_of(in_.recipe.output) / written_.files.front().name).string();
  o.facts.digest = written_.digest;
  o.facts.bytes_out = written_.bytes;
  o.facts.bits_per_weight = o.facts.bits_per_weight_total = written_.bits_per_weight();
}

std::string GgufForm::publish(const JobOutcome& outcome, const ManifestText& manifest, bool) {
  Json run = Json::object({{"seconds", outcome.seconds},
                           {"resumed_blocks", outcome.resumed_blocks},
                           {"importance", plan_.importance},
                           {"search", plan_.search == BlockSearch::kBest ? "best" : "ggml"},
                           {"fallbacks", Json::array()},
                           {"warnings", text_list(plan_.warnings)},
                           {"tensors", tensors_json(written_)}});
  if (!kernels_.empty()) run["kernels"] = kernels_json(kernels_);
  add_findings(run, outcome);
  run["memory"]["samples"] = memory_.to_json();
  output_->publish(written_, make_report(outcome.facts, {}, run).dump(1) + "\n", manifest);
  return {};
}

}  // namespace llmq

#include "quant/pipeline/pipeline.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>

#include "base/disk/trace_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/seconds_since.h"
#include "calibration/calibration_kernels.h"
#include "quant/pipeline/block_quantizer.h"
#include "quant/pipeline/block_record.h"
#include "quant/pipeline/dense_tensors.h"
#include "quant/pipeline/replay_block.h"
#include "quant/pipeline/rounding/rounding_run.h"

namespace llmq {
namespace {

double work_of(const PlannedModule& module) {
  return static_cast<double>(module.out_features) * static_cast<double>(module.in_features);
}

// What this rank will quantize, and how many linears there are with those that are done.
std::pair<double, std::size_t> work_left(const QuantizeRun& run) {
  std::set<std::string> done;
  for (const ModuleReport& module : run.report.modules) done.insert(module.module);
  double total = 0;
  std::size_t linears = run.report.modules.size();
  for (const PlannedModule& module : run.plan.packed())
    if (done.count(module.module) == 0 && run.quantizes(module.module)) total += work_of(module), ++linears;
  return {total, linears};
}

// Progress of the whole run, of `linears`, told after each one.
void report_progress(QuantizeRun& run, Progress& progress, std::size_t linears) {
  const std::size_t per_block = run.plan.modules.size() / std::max<std::size_t>(run.spec.blocks.size(), 1);
  run.on_linear = [&run, &progress, per_block, linears](const PlannedModule& module,
                                                        const ModuleReport& report) {
    const std::size_t done = run.report.modules.size();
    const std::string place = fmt::format("{}/{} {}", done, linears, module.module);
    const std::string figures =
        run.plan.needs_calibration ? fmt::format("loss {:.3e}, rounding {:.3e}", report.loss, report.rtn_loss)
                                   : fmt::format("error {:.4f}", report.weight_error);
    run.memory.look();
    progress.advance(work_of(module), place, figures, per_block == 0 || done % per_block == 0);
    if (run.options.on_step) run.options.on_step(place, figures);
  };
}

// Devices whose memory ran out go on with fewer rows at a time: said at the end of the block.
void tell_fewer_rows(QuantizeRun& run, std::span<const ForwardContext> devices, std::size_t block) {
  for (const ForwardContext& device : devices) {
    const std::optional<std::int64_t> rows = device.fitting ? device.fitting->news() : std::nullopt;
    if (!rows) continue;
    run.report.warnings.push_back(
        fmt::format("{} ran out of memory in block {}/{}: from here on it computes {} rows of a chunk at a "
                    "time, with the same result",
                    device.backend.name(), block + 1, run.spec.blocks.size(), *rows));
    Log::get().warn(run.report.warnings.back());
  }
}

void replay_blocks(QuantizeRun& run, const std::vector<std::set<std::string>>& finished,
                   std::span<const ForwardContext> devices, ActivationStream& stream) {
  if (finished.empty()) return;
  const LinearSource written = LinearSource::open(run.writing.writer().written());
  for (std::size_t block = 0; block < finished.size(); ++block) {
    const std::string place = fmt::format("block {}/{}", block + 1, run.spec.blocks.size());
    replay_block(run, written, finished[block], static_cast<int>(block), stream);
    tell_fewer_rows(run, devices, block);
    if (run.options.on_step) run.options.on_step(place, "once more");
  }
}

// `finished`: of each block that an interrupted run finished, the dense tensors it changed.
void run_calibrated(QuantizeRun& run, const CalibrationSet& calibration,
                    const std::vector<std::set<std::string>>& finished) {
  run.report.loss_tokens = std::min(calibration.tokens(), run.plan.gram_tokens());
  if (finished.size() == run.spec.blocks.size()) return;
  const std::int64_t length = static_cast<std::int64_t>(calibration.samples.front().size());
  std::vector<ForwardContext> devices;
  for (Backend* const backend : run.devices()) {
    devices.push_back(make_forward_context(run.spec, *backend, run.plan.compute, length));
    if (backend->device().kind != DeviceKind::kHost) devices.back().fitting = std::make_unique<FittingRows>();
  }
  const auto open_store = [&](std::uint64_t bytes) -> std::unique_ptr<File> {
    if (run.plan.activations_on_host && !run.plan.activations_in_file) return hold_on_the_host(bytes);
    if (!run.plan.activations_in_file) return nullptr;
    return open_nameless(*run.options.io, run.options.scratch_directory, bytes);
  };
  SamplePlace place{run.plan.keep_inputs, open_store};
  place.ranks = &run.ranks();
  if (takes_back_upstream(run.plan))
    place.stride =
        original_stride(static_cast<std::int64_t>(calibration.samples.size()), length, run.plan.chunk_tokens);
  ActivationStream stream(devices, calibration, run.plan.chunk_tokens, place);
  if (run.plan.kv_cache) stream.measure_kv();
  stream.embed(run.source.checkpoint(), calibration);
  run.clock.charge("forward");
  std::optional<OriginalStream> original;
  if (takes_back_upstream(run.plan)) {
    original.emplace(
        make_original_stream(devices, calibration, run.plan.chunk_tokens, open_store, run.ranks()));
    original->stream.embed(run.source.checkpoint(), original->samples);
    run.original = &*original;
  }
  replay_blocks(run, finished, devices, stream);
  for (std::size_t block = finished.size(); block < run.spec.blocks.size(); ++block) {
    const ReportMark before = mark_report(run.report);
    const std::int64_t started_ns = unix_time_ns();
    read_ahead(run, block + 1);
    if (block == 0) round_tower(run);
    quantize_block_on_samples(run, static_cast<int>(block), stream);
    tell_fewer_rows(run, devices, block);
    finish_block(run, before);
    run.writing.share_committed(Committed::kWholeBlocks);
    trace_block(run, block, before, started_ns);
  }
  run.original = nullptr;  // it ends here, and the run goes on
}

// What the journal of an interrupted run says of each of its blocks enters the report.
std::vector<std::set<std::string>> take_finished(QuantizeRun& run) {
  std::vector<std::set<std::string>> finished;
  for (const Json& findings : run.writing.writer().committed()) {
    finished.push_back(take_record(run, findings));
    run.written_dense.insert(finished.back().begin(), finished.back().end());
  }
  return finished;
}

}  // namespace

std::unique_ptr<Method> make_rounding(const Plan& plan) { return plan.traits->make(plan, plan.compute); }

QuantizeReport run_pipeline(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec,
                            const CalibrationSet& calibration, Backend& backend, ModelWriter& writer,
                            const PipelineOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  if (plan.needs_calibration && calibration.samples.empty())
    fail(ErrorKind::kInternal, "{} needs calibration samples and got none", plan.method);
  const LinearSource source = LinearSource::open(checkpoint);
  QuantizeReport report;
  report.warnings = plan.warnings;
  std::vector<const Backend*> devices = {&backend};
  for (const std::shared_ptr<Backend>& device : options.further_devices) devices.push_back(device.get());
  const CalibrationKernels kernels(std::move(devices));
  PartClock clock;
  BackgroundWriter writing(writer);
  QuantizeRun run(plan, source, spec, backend, options, report, clock, make_rounding(plan), writing);
  const std::vector<std::set<std::string>> finished = take_finished(run);
  RoundingRun rounding(run);
  report.resumed_blocks =
      plan.needs_calibration ? static_cast<std::int64_t>(finished.size()) : rounding.finished_blocks();
  if (!finished.empty())
    Log::get().note(fmt::format("{} of {} blocks were finished by an interrupted run", report.resumed_blocks,
                                spec.blocks.size()));
  read_dense_ahead(run);
  read_ahead(run, plan.needs_calibration ? finished.size() : rounding.first_block());
  check_dense(run);
  run.memory.mark();
  const auto [total, linears] = work_left(run);
  Progress progress("quantize", total);
  report_progress(run, progress, linears);
  if (plan.needs_calibration)
    run_calibrated(run, calibration, finished);
  else
    rounding.run();
  write_dense(run);
  writing.finish();
  if (plan.needs_calibration)
    writing.share_committed(Committed::kWholeBlocks);
  else
    rounding.finish();
  clock.charge("writing");
  run.memory.mark();
  report.memory_samples = run.memory.to_json();
  report.kernels = kernels.chosen();
  report.seconds_by_part = clock.seconds();
  report.seconds = seconds_since(start);
  return report;
}

Json fallbacks_json(std::span<const Fallback> fallbacks) {
  Json list = Json::array();
  for (const Fallback& fallback : fallbacks)
    list.push_back(Json::object({{"module", Json(fallback.module)}, {"reason", Json(fallback.reason)}}));
  return list;
}

Json QuantizeReport::to_json() const {
  Json list = Json::array(), parts = Json::object();
  double loss = 0, rtn = 0;
  for (const ModuleReport& m : modules) {
    loss += m.loss;
    rtn += m.rtn_loss;
    list.push_back(Json::object({{"module", Json(m.module)},
                                 {"method", Json(m.method)},
                                 {"scheme", Json(m.scheme.text())},
                                 {"bits", Json(m.scheme.bits)},
                                 {"loss", Json(m.loss)},
                                 {"rtn_loss", Json(m.rtn_loss)},
                                 {"lambda", Json(m.lambda)},
                                 {"relative_error", Json(m.relative_error)},
                                 {"weight_error", Json(m.weight_error)},
                                 {"scale_histogram", m.scales.to_json()},
                                 {"input_error", Json(m.input_error)}}));
  }
  for (const auto& [part, time] : seconds_by_part) parts[part] = Json(time);
  Json report = Json::object({{"seconds", Json(seconds)},
                              {"resumed_blocks", Json(resumed_blocks)},
                              {"loss_tokens", Json(loss_tokens)},
                              {"seconds_by_part", parts},
                              {"loss", Json(loss)},
                              {"rtn_loss", Json(rtn)},
                              {"fallbacks", fallbacks_json(fallbacks)},
                              {"warnings", text_list(warnings)},
                              {"modules", list}});
  if (!kernels.empty()) report["kernels"] = kernels_json(kernels);
  if (!mixtures.empty()) {
    Json& blocks = report["mixtures"] = Json::array();
    for (const Json& mixture : mixtures) blocks.push_back(mixture);
  }
  return report;
}

}  // namespace llmq

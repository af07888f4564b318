#include "quant/pipeline/pipeline.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>

#include "base/disk/trace_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/seconds_since.h"
#include "quant/pipeline/block_quantizer.h"
#include "quant/pipeline/block_record.h"
#include "quant/pipeline/replay_block.h"
#include "tensor/stored_float.h"

namespace llmq {
namespace {

bool is_packed_weight(const QuantizeRun& run, const std::string& tensor) {
  return run.replaced.count(tensor) != 0;
}

// What no fold can change, and can be copied as it is looked at.
bool is_copied_first(const QuantizeRun& run, const StoredTensor& tensor) {
  return tensor.view.shape.rank() > 1 && tensor.in_order() && tensor.stack < 0 &&
         tensor.view.shape.elements() != 0 && run.never_quantized.count(tensor.name) == 0;
}

constexpr std::uint64_t kSyncedBytes = std::uint64_t{128}
                                       << 20;  // at most so much waits to be sent to the disk

// Rows as they are stored, or converted.
void copy_band(QuantizeRun& run, const StoredTensor& tensor, const TensorView& band) {
  const DType dtype = written_dtype(tensor);
  const Shape& shape = tensor.view.shape;
  if (dtype == band.dtype) {
    run.writing.append_dense_now(tensor.name, dtype, shape,
                                 {band.as<const std::byte>(), static_cast<std::size_t>(band.bytes())});
    return;
  }
  std::vector<float> values(static_cast<std::size_t>(band.shape.elements()));
  to_float32(band, values);
  run.writing.append_dense_now(tensor.name, dtype, shape, stored_floats(values, dtype));
}

// Those of which no part is quantized, to the byte.
void copy_stacks(QuantizeRun& run) {
  const Checkpoint& checkpoint = run.source.checkpoint();
  for (const StoredStack& stack : checkpoint.stacks()) {
    if (is_packed_weight(run, stack.parts.front())) continue;
    for (const StoredTensor& tensor : stack.tensors) {
      checkpoint.each_band(tensor,
                           [&](std::int64_t, const TensorView& band) { copy_band(run, tensor, band); });
      run.writing.sync();
    }
  }
}

// Norms, biases, embedding, head, linears left alone: looked at before the first hour of work, not after the
// last. What can be large is copied on the way, a band of rows at a time, so that it is read once and written
// while the blocks are worked on.
void check_dense(QuantizeRun& run) {
  const Checkpoint& checkpoint = run.source.checkpoint();
  std::uint64_t unsynced = 0;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    if (is_packed_weight(run, tensor.name)) continue;
    const bool copied = is_copied_first(run, tensor);
    std::int64_t rows = 0;  // copied so far
    const Checkpoint::EachBand copy = [&](std::int64_t first, const TensorView& band) {
      if (first < rows) return;
      copy_band(run, tensor, band);
      rows = first + band.rows();
      if ((unsynced += band.bytes()) < kSyncedBytes) return;
      run.writing.sync();
      unsynced = 0;
    };
    try {
      if (is_float(tensor.view.dtype) || tensor.is_scaled())
        run.source.finite(tensor.name, copied ? copy : Checkpoint::EachBand());
    } catch (const Error& error) {
      if (!run.options.allow_nonfinite || error.kind() != ErrorKind::kBadInput) throw;
      run.report.warnings.push_back(tensor.name + " " + error.detail().message + " and stays as it is");
    }
    if (!copied) continue;
    if (rows < tensor.view.rows()) checkpoint.each_band(tensor, copy);
    run.written_dense.insert(tensor.name);
  }
  copy_stacks(run);
  run.writing.sync();
  run.clock.charge("dense tensors");
}

// A span of --trace-file: block `block` from `started_ns` on, with what it found.
void trace_block(const QuantizeRun& run, std::size_t block, const ReportMark& before,
                 std::int64_t started_ns) {
  if (!TraceFile::get().is_open()) return;
  double loss = 0, rounding_loss = 0;
  for (std::size_t i = before.modules; i < run.report.modules.size(); ++i) {
    loss += run.report.modules[i].loss;
    rounding_loss += run.report.modules[i].rtn_loss;
  }
  Json found =
      Json::object({{"llmq.block", static_cast<std::int64_t>(block)},
                    {"llmq.blocks", static_cast<std::int64_t>(run.spec.blocks.size())},
                    {"llmq.modules", static_cast<std::int64_t>(run.report.modules.size() - before.modules)}});
  if (run.plan.needs_calibration) {
    found["llmq.loss"] = loss;
    found["llmq.rounding_loss"] = rounding_loss;
  }
  TraceFile::get().write({run.spec.blocks[block].prefix, Span::Kind::kInternal, TraceFile::get().command(),
                          started_ns, unix_time_ns(), std::move(found)});
}

// The end of a block: what its folds changed goes to the writer, and what it found with it.
void finish_block(QuantizeRun& run, const ReportMark& before) {
  std::set<std::string> changed;
  for (const auto& [name, values] : run.changed_dense) {
    const StoredTensor& tensor = run.source.checkpoint().at(name);
    const DType dtype = written_dtype(tensor);
    run.writing.add_dense(name, dtype, tensor.view.shape, stored_floats(values, dtype));
    changed.insert(name);
  }
  run.writing.commit(block_record_json(run.report, before, changed));
  run.written_dense.merge(changed);
  run.changed_dense.clear();
  run.memory.mark();
  run.clock.charge("writing");
}

// Everything that was not packed, that no fold changed and that was not copied at the start.
void write_dense(QuantizeRun& run) {
  for (const StoredTensor& tensor : run.source.checkpoint().tensors()) {
    if (is_packed_weight(run, tensor.name) || tensor.stack >= 0 || run.written_dense.count(tensor.name) != 0)
      continue;
    const DType dtype = written_dtype(tensor);
    const bool as_stored = dtype == tensor.view.dtype && tensor.in_order();
    const Lease lease = as_stored ? run.source.checkpoint().hold(tensor) : Lease();
    const std::vector<std::byte> converted =
        as_stored ? std::vector<std::byte>()
                  : stored_floats(run.source.checkpoint().read_float32(tensor), dtype);
    const std::span<const std::byte> stored = {tensor.view.as<const std::byte>(),
                                               static_cast<std::size_t>(tensor.view.bytes())};
    run.writing.add_dense_now(tensor.name, dtype, tensor.view.shape,
                              as_stored ? stored : std::span(converted));
  }
  run.clock.charge("writing");
}

double work_of(const PlannedModule& module) {
  return static_cast<double>(module.out_features) * static_cast<double>(module.in_features);
}

// Progress of the whole run, told after each linear.
void report_progress(QuantizeRun& run, Progress& progress) {
  const std::size_t per_block = run.plan.modules.size() / std::max<std::size_t>(run.spec.blocks.size(), 1);
  run.on_linear = [&run, &progress, per_block](const PlannedModule& module, const ModuleReport& report) {
    const std::size_t done = run.report.modules.size();
    const std::string place =
        fmt::format("{}/{} {}", done, run.plan.modules.size() + run.plan.tower.size(), module.module);
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

// The disk reads, in the order in which they are looked at, the dense tensors that check_dense() copies,
void read_dense_ahead(const QuantizeRun& run) {
  const Checkpoint& checkpoint = run.source.checkpoint();
  for (const StoredTensor& tensor : checkpoint.tensors())
    if (!is_packed_weight(run, tensor.name) && is_copied_first(run, tensor)) checkpoint.read_ahead(tensor);
}

// and the linears of a block while the one before it is worked on.
void read_ahead(const QuantizeRun& run, std::size_t block) {
  if (block >= run.spec.blocks.size()) return;
  const Checkpoint& checkpoint = run.source.checkpoint();
  for (const LinearSpec& linear : run.spec.blocks[block].linears) {
    if (!run.plan.needs_calibration && run.planned.count(linear.module) == 0)
      continue;  // nobody will look at it
    if (const StoredTensor* tensor = checkpoint.find(linear.weight.tensor)) checkpoint.read_ahead(*tensor);
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
  if (takes_back_upstream(run.plan))
    place.stride =
        original_stride(static_cast<std::int64_t>(calibration.samples.size()), length, run.plan.chunk_tokens);
  ActivationStream stream(devices, calibration, run.plan.chunk_tokens, place);
  if (run.plan.kv_cache) stream.measure_kv();
  stream.embed(run.source.checkpoint(), calibration);
  run.clock.charge("forward");
  std::optional<OriginalStream> original;
  if (takes_back_upstream(run.plan)) {
    original.emplace(make_original_stream(devices, calibration, run.plan.chunk_tokens, open_store));
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
    trace_block(run, block, before, started_ns);
  }
  run.original = nullptr;  // it ends here, and the run goes on
}

void run_by_rounding(QuantizeRun& run, std::size_t first_block) {
  for (std::size_t block = first_block; block < run.spec.blocks.size(); ++block) {
    const ReportMark before = mark_report(run.report);
    const std::int64_t started_ns = unix_time_ns();
    read_ahead(run, block + 1);
    if (block == 0) round_tower(run);
    quantize_block_by_rounding(run, static_cast<int>(block));
    finish_block(run, before);
    trace_block(run, block, before, started_ns);
  }
}

// What the journal of an interrupted run says of each of its blocks enters the report.
std::vector<std::set<std::string>> take_finished(QuantizeRun& run) {
  std::vector<std::set<std::string>> finished;
  for (const Json& findings : run.writing.writer().committed()) {
    finished.push_back(take_record(run, findings));
    run.written_dense.insert(finished.back().begin(), finished.back().end());
  }
  run.report.resumed_blocks = static_cast<std::int64_t>(finished.size());
  if (!finished.empty())
    Log::get().note(fmt::format("{} of {} blocks were finished by an interrupted run", finished.size(),
                                run.spec.blocks.size()));
  return finished;
}

// Without what others asked the backend for, such as a prediction of time.
std::vector<KernelChoice> asked_since(std::span<const KernelChoice> before, std::vector<KernelChoice> after) {
  std::erase_if(after, [&](const KernelChoice& choice) {
    return choice.asked != 0 && std::any_of(before.begin(), before.end(), [&](const KernelChoice& other) {
             return other.what == choice.what && other.asked == choice.asked;
           });
  });
  return after;
}

}  // namespace

std::uint64_t copied_band_bytes(const StoredTensor& tensor) {
  const auto elements = static_cast<std::uint64_t>(std::max<std::int64_t>(tensor.view.shape.elements(), 0)),
             band = std::min(elements, static_cast<std::uint64_t>(Checkpoint::kBandElements));
  if (elements == 0) return 0;
  const std::uint64_t stored = tensor.view.bytes() / (elements / band);
  const DType written = written_dtype(tensor);
  return written == tensor.view.dtype
             ? stored
             : stored + band * (sizeof(float) + static_cast<std::uint64_t>(element_bytes(written)));
}

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
  const std::vector<KernelChoice> kernels_before = backend.kernel_choices();
  PartClock clock;
  BackgroundWriter writing(writer);
  QuantizeRun run(plan, source, spec, backend, options, report, clock, make_rounding(plan), writing);
  const std::vector<std::set<std::string>> finished = take_finished(run);
  read_dense_ahead(run);
  read_ahead(run, finished.size());
  check_dense(run);
  run.memory.mark();
  double total = 0;
  const std::vector<PlannedModule> packed = plan.packed();
  for (std::size_t i = report.modules.size(); i < packed.size(); ++i) total += work_of(packed[i]);
  Progress progress("quantize", total);
  report_progress(run, progress);
  if (plan.needs_calibration)
    run_calibrated(run, calibration, finished);
  else
    run_by_rounding(run, finished.size());
  write_dense(run);
  writing.finish();
  clock.charge("writing");
  run.memory.mark();
  report.memory_samples = run.memory.to_json();
  report.kernels = asked_since(kernels_before, backend.kernel_choices());
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

Json kernels_json(std::span<const KernelChoice> kernels) {
  Json list = Json::array();
  for (const KernelChoice& choice : kernels)
    list.push_back(Json::object({{"what", Json(choice.what)},
                                 {"kernel", Json(choice.kernel)},
                                 {"why", choice.why.empty() ? Json() : Json(choice.why)}}));
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

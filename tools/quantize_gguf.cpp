#include "tools/quantize_gguf.h"

#include <chrono>

#include "base/error.h"
#include "base/log.h"
#include "export/report/report.h"
#include "quant/pipeline/imatrix_collection.h"
#include "quant/plan/gguf_plan.h"
#include "quant/plan/gguf_time.h"
#include "tools/disk_traffic.h"
#include "tools/interrupt.h"
#include "tools/job.h"
#include "tools/job_ends.h"
#include "tools/loaded_model.h"
#include "tools/output_evaluation.h"
#include "tools/predicted_time.h"
#include "tools/print.h"
#include "tools/provenance.h"
#include "tools/run_metrics.h"
#include "tools/version.h"

namespace llmq::tools {
namespace {

struct Outcome {
  const Recipe& recipe;
  GgufPlan plan;
  CalibrationSet calibration = {};
  Json job = {};
  std::int64_t resumed_blocks = 0;
  GgufWritten written = {};
  RunFacts facts = {};
  double seconds = 0, writing_seconds = 0;  // of the whole run; of importance and the file
  std::uint64_t peak_rss_bytes = 0;         // of the quantization: an evaluation after it holds both models
  std::uint64_t peak_device_bytes = 0;      // likewise
  DiskTraffic disk = {};                    // likewise
  std::optional<TimePrediction> prediction = {};
  std::optional<OutputEvaluation> evaluation = {};
};

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void print_plan(const GgufPlan& plan, const TimePrediction& time) {
  print_line(fmt::format("{} to {}, written as gguf: {} tensors, {:.3f} bits per weight; importance: {}",
                         plan.method, gguf_type_name(*plan.file_type), plan.tensors.size(),
                         plan.bits_per_weight(), plan.importance));
  std::vector<std::vector<std::string>> rows = {{"memory", "bytes"}};
  for (const MemoryItem& item : plan.costs.memory) rows.push_back({item.what, bytes_text(item.bytes)});
  rows.push_back({"peak", bytes_text(plan.costs.peak_bytes)});
  print_table(rows);
  print_reads(plan.costs.reads);
  print_line(
      fmt::format("writes {}, {:.2f} TFLOP", bytes_text(plan.costs.bytes_out), plan.costs.flops / 1e12));
  print_time(time);
}

// Of the calibration text, or of a file; none without. What an interrupted run collected is not collected
// again.
std::optional<Imatrix> importance_for(const GgufPlan& plan, const CalibrationSet& calibration,
                                      const LoadedModel& model, Backend& backend, GgufOutput& output) {
  if (plan.importance == "none") return std::nullopt;
  if (!plan.needs_calibration()) return load_imatrix(system_io(), plan.importance);
  if (!output.importance()) {
    Progress progress("importance", static_cast<double>(model.spec.blocks.size()));
    ImportanceOptions options{plan.compute, plan.chunk_tokens, plan.keep_inputs, {}};
    options.on_block = [&](int block) {
      throw_if_interrupted();
      progress.advance(1, fmt::format("block {}/{}", block + 1, model.spec.blocks.size()), "", true);
    };
    Imatrix imatrix = collect_importance(model.checkpoint, model.spec, calibration, backend, options);
    imatrix.datasets = plan.calibration.text;
    output.keep_importance(std::move(imatrix));
  }
  if (!plan.imatrix_out.empty()) save_imatrix(system_io(), plan.imatrix_out, *output.importance());
  return output.importance();
}

Json tensors_json(const GgufWritten& written) {
  Json list = Json::array();
  for (const GgufWritten::Tensor& tensor : written.tensors)
    list.push_back(Json::object({{"tensor", Json(tensor.name)},
                                 {"type", Json(dtype_row(tensor.dtype).name)},
                                 {"importance", Json(tensor.weighted)}}));
  return list;
}

std::string report_text(const Outcome& o) {
  Json run = Json::object({{"seconds", o.seconds},
                           {"resumed_blocks", o.resumed_blocks},
                           {"importance", o.plan.importance},
                           {"search", o.plan.search == BlockSearch::kBest ? "best" : "ggml"},
                           {"fallbacks", Json::array()},
                           {"warnings", Json::array()},
                           {"tensors", tensors_json(o.written)},
                           {"memory", Json::object({{"planned_peak_bytes", o.plan.costs.peak_bytes},
                                                    {"peak_rss_bytes", o.peak_rss_bytes},
                                                    {"peak_device_bytes", o.peak_device_bytes}})},
                           {"disk", traffic_json(o.disk)}});
  if (o.prediction) {
    run["time"] = o.prediction->to_json();
    run["time"]["found_seconds"] = o.writing_seconds;
  }
  if (o.evaluation) run["evaluation"] = evaluation_json(*o.evaluation, o.facts.model);
  return make_report(o.facts, {}, run).dump(1) + "\n";
}

RunFacts facts_of(const Outcome& o, const LoadedModel& model, const Session& session) {
  RunFacts facts;
  facts.version = version_text();
  facts.command = session.command_line;
  facts.model = o.recipe.model;
  facts.method = o.plan.method;
  facts.scheme = gguf_type_name(*o.plan.file_type);
  facts.format = "gguf";
  facts.recipe = o.recipe.to_json();
  facts.calibration = calibration_json(o.recipe, o.calibration);
  facts.job = o.job;
  facts.digest = o.written.digest;
  facts.bytes_in = model.checkpoint.tensor_bytes();
  facts.bytes_out = o.written.bytes;
  facts.bits_per_weight = facts.bits_per_weight_total = o.written.bits_per_weight();
  return facts;
}

Json outcome_json(const Outcome& o) {
  Json document = Json::object({{"schema", "llmq.quantize/1"},
                                {"status", "done"},
                                {"output", o.recipe.output},
                                {"version", nullptr},
                                {"method", o.plan.method},
                                {"scheme", o.facts.scheme},
                                {"format", "gguf"},
                                {"compute", compute_name(o.plan.compute)},
                                {"seconds", o.seconds},
                                {"peak_rss_bytes", o.peak_rss_bytes},
                                {"peak_device_bytes", o.peak_device_bytes},
                                {"planned_peak_bytes", o.plan.costs.peak_bytes},
                                {"predicted_seconds", o.prediction ? Json(o.prediction->seconds) : Json()},
                                {"bytes_in", o.facts.bytes_in},
                                {"bytes_out", o.facts.bytes_out},
                                {"bits_per_weight", o.facts.bits_per_weight},
                                {"bits_per_weight_total", o.facts.bits_per_weight_total},
                                {"modules", static_cast<std::int64_t>(o.written.tensors.size())},
                                {"calibration", o.facts.calibration},
                                {"fallbacks", Json::array()},
                                {"warnings", Json::array()},
                                {"resumed_blocks", o.resumed_blocks},
                                {"digest", o.written.digest}});
  add_traffic(document, o.disk);
  if (o.evaluation) document["evaluation"] = evaluation_json(*o.evaluation, o.facts.model);
  return document;
}

void print_outcome(const Outcome& o) {
  print_line(fmt::format("{}: {} tensors to {} by {}, {} from {}, {:.3f} bits per weight", o.recipe.output,
                         o.written.tensors.size(), o.facts.scheme, o.plan.method,
                         bytes_text(o.facts.bytes_out), bytes_text(o.facts.bytes_in),
                         o.facts.bits_per_weight));
  print_line(fmt::format("{}, peak memory {} (planned {}), {}", seconds_text(o.seconds),
                         bytes_text(o.peak_rss_bytes), bytes_text(o.plan.costs.peak_bytes),
                         o.written.digest));
  print_traffic(o.disk);
  print_evaluation(o.evaluation, o.recipe);
}

// Beside what decides the bytes of any output, what the file says of itself, and the matrix that weighs its
// errors.
Json make_gguf_job(const Outcome& o, const LoadedModel& model, const Backend& backend, DigestCache& digests,
                   Io& model_io) {
  const auto sha256 = [&](const Path& path) { return digests.sha256(path, model_io); };
  Json job = make_job(o.recipe, model, o.calibration, o.plan.compute, backend, false, sha256);
  job["recipe"]["gguf"].erase("imatrix_out");
  job["name"] = o.recipe.model;
  const bool file = o.plan.importance != "none" && !o.plan.needs_calibration();
  job["importance"] = file ? digests.sha256(o.plan.importance) : o.plan.importance;
  return job;
}

}  // namespace

GgufRequest gguf_request(const Recipe& recipe, const GgufPlan& plan, const OutputTarget& target) {
  GgufRequest request;
  request.target = target;
  request.name = recipe.model;
  request.file_type = plan.file_type;
  request.weighted = plan.importance != "none";
  request.search = plan.search;
  return request;
}

GgufWritten write_gguf(const GgufPlan& plan, const CalibrationSet& calibration, const LoadedModel& model,
                       Backend& backend, GgufOutput& output) {
  const std::optional<Imatrix> importance = importance_for(plan, calibration, model, backend, output);
  return_freed_memory();
  return output.write(importance ? &*importance : nullptr, backend.workers());
}

int quantize_to_gguf(const Recipe& recipe, const GgufQuantizeFlags& flags, const Session& session) {
  const GlobalOptions& globals = session.globals;
  const auto start = std::chrono::steady_clock::now();
  const RunFiles files(flags.direct_io ? Reading::kDirect : Reading::kCached);
  const LoadedModel model = open_model(*files.model, recipe.model);
  const std::shared_ptr<Backend> backend = chosen_backend(globals, wanted_arithmetic(recipe));
  Outcome o{recipe, make_gguf_plan(*files.model, recipe, model.checkpoint, model.spec,
                                   chosen_compute(globals, Compute::kBFloat16),
                                   parse_bytes(globals.memory_limit, "--memory-limit"))};
  DigestCache digests(system_io(), flags.paranoid ? Path() : DigestCache::default_file());
  std::vector<ReadPass> whole_files = whole_file_reads(model.checkpoint, *files.model, digests);
  const auto announce = [&](std::vector<ReadPass> tensors) {
    o.plan.costs.reads = whole_files;
    for (ReadPass& pass : tensors) o.plan.costs.reads.push_back(std::move(pass));
  };
  const std::vector<ReadPass> tensors = o.plan.costs.reads;
  announce(tensors);
  const auto predict = [&] {
    const std::uint64_t before = files.model->counters().bytes_read;
    o.prediction = predict_gguf_time(o.plan, *files.model, model.checkpoint, model.spec, *backend,
                                     *files.scratch, directory_of(recipe.output));
    whole_files.push_back({"prediction of time", files.model->counters().bytes_read - before});
    announce(tensors);
  };
  if (flags.dry_run) {
    predict();
    Json plan = o.plan.to_json();
    plan["time"] = o.prediction->to_json();
    if (globals.json)
      print_json(plan);
    else
      print_plan(o.plan, *o.prediction);
    return 0;
  }
  if (o.plan.needs_calibration())
    o.calibration = load_calibration(system_io(), o.plan.calibration, model.tokenizer);
  OutputTarget target{recipe.output, flags.overwrite};
  target.single_file = true;
  target.restart = flags.restart;
  target.versioned = recipe.versioned;
  target.job = o.job = make_gguf_job(o, model, *backend, digests, *files.model);
  const std::optional<PublishedOutput> found =
      unchanged_output(system_io(), target, recipe.to_json().at("evaluate"), digests);
  digests.save();
  if (found)
    return report_unchanged(*found,
                            {recipe.output, compute_name(o.plan.compute), o.plan.tensors.size(), since(start),
                             false, flags.metrics_out},
                            globals);
  check_gguf_destination(system_io(), target, model.checkpoint.path());
  if (is_long(o.plan.costs.flops, o.plan.costs.bytes_in)) predict();
  if (o.prediction && !o.prediction->unknown.empty()) o.prediction.reset();
  RunProvenance provenance(system_io(), *files.model, digests,
                           input_files(system_io(), recipe, o.plan.needs_calibration(), model.checkpoint),
                           provenance_facts(recipe, *backend, o.plan.compute, session));
  Progress progress("gguf", static_cast<double>(o.plan.tensors.size()));
  std::size_t done = 0;
  GgufRequest request = gguf_request(recipe, o.plan, target);
  request.on_tensor = [&](const std::string& tensor) {
    throw_if_interrupted();
    ++done;
    progress.advance(1, fmt::format("{}/{} {}", done, o.plan.tensors.size(), tensor), "", done % 64 == 0);
  };
  request.model_io = files.model.get();
  const std::uint64_t written_before = system_io().counters().bytes_written;
  GgufOutput output(system_io(), model.checkpoint, model.spec, std::move(request));
  o.resumed_blocks = output.resumed_blocks();
  announce(gguf_read_passes(o.plan, model.checkpoint, model.spec, output.importance().has_value(),
                            output.finished_tensors()));
  const auto writing = std::chrono::steady_clock::now();
  o.written = write_gguf(o.plan, o.calibration, model, *backend, output);
  o.writing_seconds = since(writing);
  provenance.wait();
  o.disk = {o.plan.costs.reads, o.plan.costs.bytes_out, files.model->counters().bytes_read,
            system_io().counters().bytes_written - written_before, files.scratch->counters().bytes_written};
  o.seconds = since(start);
  o.peak_rss_bytes = peak_resident_bytes();
  o.peak_device_bytes = backend->peak_bytes();
  o.facts = facts_of(o, model, session);
  if (recipe.evaluate)
    o.evaluation = evaluate_output(*recipe.evaluate, output.file().string(), model, backend, globals);
  provenance.facts().calibration = o.facts.calibration;
  output.publish(o.written, report_text(o),
                 [&](const std::vector<NamedDigest>& outputs) { return provenance.manifest(outputs); });
  const int code = !o.evaluation || all_met(o.evaluation->gates) ? 0 : 3;
  write_metrics(system_io(), flags.metrics_out, outcome_json(o), code);
  if (globals.json)
    print_json(outcome_json(o));
  else
    print_outcome(o);
  return code;
}

}  // namespace llmq::tools

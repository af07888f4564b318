#include "tools/quantize_gguf.h"

#include <chrono>

#include "base/error.h"
#include "base/log.h"
#include "export/report.h"
#include "quant/gguf_plan.h"
#include "quant/importance.h"
#include "tools/interrupt.h"
#include "tools/loaded_model.h"
#include "tools/output_evaluation.h"
#include "tools/print.h"
#include "tools/provenance.h"
#include "tools/run_metrics.h"
#include "tools/version.h"

namespace llmq::tools {
namespace {

struct Outcome {
  const Recipe& recipe;
  GgufPlan plan;
  CalibrationSet calibration;
  GgufWritten written;
  RunFacts facts;
  double seconds = 0;
  std::vector<std::pair<std::string, double>> seconds_by_part;
  std::uint64_t peak_rss_bytes = 0;  // of the quantization: an evaluation after it holds both models
  std::optional<OutputEvaluation> evaluation;
};

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void print_plan(const GgufPlan& plan) {
  print_line(fmt::format("{} to {}, written as gguf: {} tensors, {:.3f} bits per weight; importance: {}",
                         plan.method, gguf_type_name(*plan.file_type), plan.tensors.size(),
                         plan.bits_per_weight(), plan.importance));
  std::vector<std::vector<std::string>> rows = {{"memory", "bytes"}};
  for (const MemoryItem& item : plan.memory) rows.push_back({item.what, bytes_text(item.bytes)});
  rows.push_back({"peak", bytes_text(plan.peak_bytes)});
  print_table(rows);
  print_line(fmt::format("reads {}, writes {}", bytes_text(plan.bytes_in), bytes_text(plan.bytes_out)));
}

// Of the calibration text, or of a file; a null pointer without.
std::optional<Imatrix> importance_for(Outcome& o, const LoadedModel& model, Backend& backend) {
  if (o.plan.importance == "none") return std::nullopt;
  if (!o.plan.needs_calibration()) return load_imatrix(system_io(), o.plan.importance);
  o.calibration = load_calibration(system_io(), o.plan.calibration, model.tokenizer);
  Progress progress("importance", static_cast<double>(model.spec.blocks.size()));
  ImportanceOptions options{o.plan.compute, o.plan.chunk_tokens, o.plan.keep_inputs, {}};
  options.on_block = [&](int block) {
    throw_if_interrupted();
    progress.advance(1, fmt::format("block {}/{}", block + 1, model.spec.blocks.size()), "", true);
  };
  Imatrix imatrix = collect_importance(model.checkpoint, model.spec, o.calibration, backend, options);
  imatrix.datasets = o.plan.calibration.text;
  if (!o.plan.imatrix_out.empty()) save_imatrix(system_io(), o.plan.imatrix_out, imatrix);
  return imatrix;
}

void write_file(Outcome& o, const LoadedModel& model, const std::optional<Imatrix>& importance, int threads,
                bool overwrite) {
  GgufRequest request;
  request.destination = o.recipe.output;
  request.overwrite = overwrite;
  request.name = o.recipe.model;
  request.file_type = o.plan.file_type;
  request.importance = importance ? &*importance : nullptr;
  request.search = o.plan.search;
  Progress progress("gguf", static_cast<double>(o.plan.tensors.size()));
  std::size_t done = 0;
  request.on_tensor = [&](const std::string& tensor) {
    throw_if_interrupted();
    ++done;
    progress.advance(1, fmt::format("{}/{} {}", done, o.plan.tensors.size(), tensor), "", done % 64 == 0);
  };
  ThreadPool pool(threads);
  o.written = write_gguf(system_io(), model.checkpoint, model.spec, request, pool);
}

Json tensors_json(const GgufWritten& written) {
  Json list = Json::array();
  for (const GgufWritten::Tensor& tensor : written.tensors)
    list.push_back(Json::object({{"tensor", Json(tensor.name)},
                                 {"type", Json(dtype_row(tensor.dtype).name)},
                                 {"importance", Json(tensor.weighted)}}));
  return list;
}

void write_report(const Outcome& o) {
  Json parts = Json::object();
  for (const auto& [part, time] : o.seconds_by_part) parts[part] = Json(time);
  Json run = Json::object({{"seconds", o.seconds},
                           {"seconds_by_part", parts},
                           {"importance", o.plan.importance},
                           {"search", o.plan.search == BlockSearch::kBest ? "best" : "ggml"},
                           {"tensors", tensors_json(o.written)},
                           {"memory", Json::object({{"planned_peak_bytes", o.plan.peak_bytes},
                                                    {"peak_rss_bytes", o.peak_rss_bytes}})}});
  if (o.evaluation) run["evaluation"] = evaluation_json(*o.evaluation, o.facts.model);
  write_text_atomically(system_io(), o.recipe.output + ".report.json",
                        make_report(o.facts, {}, run).dump(1) + "\n");
}

void write_manifest(const Outcome& o, RunProvenance& provenance) {
  const Path output = o.recipe.output;
  const std::vector<std::string> report = {output.filename().string() + ".report.json"};
  provenance.facts().calibration = o.facts.calibration;
  std::vector<NamedDigest> files = digests_of(system_io(), output.parent_path(), report);
  files.push_back({output.filename().string(), o.written.bytes, o.written.sha256});
  write_text_atomically(system_io(), manifest_path(output), provenance.manifest(files));
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
                                {"peak_device_bytes", 0},
                                {"planned_peak_bytes", o.plan.peak_bytes},
                                {"bytes_in", o.facts.bytes_in},
                                {"bytes_out", o.facts.bytes_out},
                                {"bits_per_weight", o.facts.bits_per_weight},
                                {"bits_per_weight_total", o.facts.bits_per_weight_total},
                                {"modules", static_cast<std::int64_t>(o.written.tensors.size())},
                                {"calibration", o.facts.calibration},
                                {"fallbacks", Json::array()},
                                {"warnings", Json::array()},
                                {"digest", o.written.digest}});
  if (o.evaluation) document["evaluation"] = evaluation_json(*o.evaluation, o.facts.model);
  return document;
}

void print_outcome(const Outcome& o) {
  print_line(fmt::format("{}: {} tensors to {} by {}, {} from {}, {:.3f} bits per weight", o.recipe.output,
                         o.written.tensors.size(), o.facts.scheme, o.plan.method,
                         bytes_text(o.facts.bytes_out), bytes_text(o.facts.bytes_in),
                         o.facts.bits_per_weight));
  print_line(fmt::format("{}, peak memory {} (planned {}), {}", seconds_text(o.seconds),
                         bytes_text(o.peak_rss_bytes), bytes_text(o.plan.peak_bytes), o.written.digest));
  print_evaluation(o.evaluation, o.recipe);
}

}  // namespace

int quantize_to_gguf(const Recipe& recipe, const GgufQuantizeFlags& flags, const Session& session) {
  const GlobalOptions& globals = session.globals;
  const auto start = std::chrono::steady_clock::now();
  const LoadedModel model = open_model(system_io(), recipe.model);
  const std::shared_ptr<Backend> backend = chosen_backend(globals, wanted_arithmetic(recipe));
  check_gguf_destination(system_io(), recipe.output, flags.overwrite, model.checkpoint.path());
  Outcome o{recipe,
            make_gguf_plan(system_io(), recipe, model.checkpoint, model.spec,
                           chosen_compute(globals, Compute::kBFloat16),
                           parse_bytes(globals.memory_limit, "--memory-limit")),
            {},
            {},
            {},
            0,
            {},
            0,
            {}};
  if (flags.dry_run) {
    if (globals.json)
      print_json(o.plan.to_json());
    else
      print_plan(o.plan);
    return 0;
  }
  RunProvenance provenance(system_io(),
                           input_files(system_io(), recipe, o.plan.needs_calibration(), model.checkpoint),
                           provenance_facts(recipe, *backend, o.plan.compute, session));
  const std::optional<Imatrix> importance = importance_for(o, model, *backend);
  o.seconds_by_part.emplace_back("importance", since(start));
  write_file(o, model, importance, backend->threads(), flags.overwrite);
  o.seconds = since(start);
  o.peak_rss_bytes = peak_resident_bytes();
  o.seconds_by_part.emplace_back("rounding and writing", o.seconds - o.seconds_by_part.front().second);
  o.facts = facts_of(o, model, session);
  if (recipe.evaluate)
    o.evaluation = evaluate_output(*recipe.evaluate, recipe.output, model, backend, globals);
  write_report(o);
  write_manifest(o, provenance);
  const int code = !o.evaluation || all_met(o.evaluation->gates) ? 0 : 3;
  write_metrics(system_io(), flags.metrics_out, outcome_json(o), code);
  if (globals.json)
    print_json(outcome_json(o));
  else
    print_outcome(o);
  return code;
}

}  // namespace llmq::tools

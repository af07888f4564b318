// llmq quantize: recipe -> plan -> calibration -> pipeline -> a published checkpoint, its report and its
// card; then the recipe's own evaluation.
#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/log.h"
#include "export/formats/packed_formats.h"
#include "export/report/html_report.h"
#include "export/report/model_card.h"
#include "export/report/report.h"
#include "io/digest_cache.h"
#include "quant/methods/gptq/factorization.h"
#include "quant/pipeline/pipeline.h"
#include "quant/plan/disk_reads.h"
#include "quant/plan/time_prediction.h"
#include "tools/bit_choice.h"
#include "tools/command.h"
#include "tools/devices_option.h"
#include "tools/disk_traffic.h"
#include "tools/help.h"
#include "tools/interrupt.h"
#include "tools/job.h"
#include "tools/job_ends.h"
#include "tools/loaded_model.h"
#include "tools/output_evaluation.h"
#include "tools/predicted_time.h"
#include "tools/print.h"
#include "tools/provenance.h"
#include "tools/quantize_gguf.h"
#include "tools/run_metrics.h"
#include "tools/version.h"

namespace llmq::tools {
namespace {

struct Options {
  std::string recipe, method, model, output;
  std::vector<std::string> settings;
  std::string target_bits, metrics_out;
  std::optional<std::string> devices;
  bool dry_run = false, overwrite = false, strict = false, resume = false, restart = false,
       allow_nonfinite = false, paranoid = false, portable = false, direct_io = false;
};

Recipe resolve_recipe(const Options& options) {
  Recipe recipe;
  recipe.source = "command line";
  if (!options.recipe.empty()) recipe = Recipe::load(system_io(), options.recipe);
  for (const std::string& setting : options.settings) recipe.set(setting);
  if (!options.method.empty()) {  // awq,gptq is the list [awq, gptq]
    const bool list = options.method.find(',') != std::string::npos && options.method.front() != '[';
    recipe.set("method=" + (list ? "[" + options.method + "]" : options.method));
  }
  if (!options.target_bits.empty()) recipe.set("target_bits=" + options.target_bits);
  if (options.portable) recipe.portable = true;
  if (!options.model.empty()) recipe.model = options.model;
  if (!options.output.empty()) recipe.output = options.output;
  const auto need = [](bool given, const char* what, const char* flag) {
    if (!given)
      fail(
          ErrorKind::kUsage,
          {fmt::format("no {} is given", what), {}, flag, fmt::format("add {} or set it in a recipe", flag)});
  };
  need(!recipe.model.empty(), "model", "--model");
  need(!recipe.methods.empty(), "method", "--method");
  need(!recipe.output.empty(), "output directory", "--output");
  return recipe;
}

// What a finished run is, gathered for stdout, report.json, report.html and README.md.
struct Outcome {
  Recipe recipe;
  Plan plan;
  QuantizeReport report;
  CalibrationSet calibration;
  RunFacts facts;
  std::vector<LoaderVerdict> loaders;
  double seconds = 0;
  std::uint64_t peak_rss_bytes = 0;     // of the quantization: an evaluation after it holds both models
  std::uint64_t peak_device_bytes = 0;  // likewise, of the device that held most
  DiskTraffic disk;                     // likewise
  std::string version;                  // of a versioned output
  BitChoice bits;                       // of --target-bits
  std::optional<TimePrediction> prediction;
  std::uint64_t probe_bytes = 0;  // of the model, read for it
  std::vector<ReadPass> whole_file_reads;
  std::uint64_t original_bytes = 0;
  std::optional<OutputEvaluation> evaluation;
};

std::string scheme_text(const Plan& plan) {
  if (plan.modules.empty()) return "none";
  for (const PlannedModule& module : plan.modules)
    if (!(module.scheme == plan.modules.front().scheme)) return "mixed";
  return plan.modules.front().scheme.text();
}

// "model.layers.0.self_attn.q_proj +2": linears of one product share their first one's name.
std::string choice_name(const PrecisionChoice& choice) {
  return choice.modules.front() +
         (choice.modules.size() > 1 ? fmt::format(" +{}", choice.modules.size() - 1) : "");
}

void print_choices(const MixedPrecision& mixed) {
  std::vector<std::vector<std::string>> rows = {{"mixed precision", "bits"}};
  for (const PrecisionOption& option : mixed.choices.front().options)
    rows.front().push_back(fmt::format("KL at {}", option.bits));
  for (const PrecisionChoice& choice : mixed.choices) {
    rows.push_back({choice_name(choice), std::to_string(choice.options[choice.chosen].bits)});
    for (const PrecisionOption& option : choice.options)
      rows.back().push_back(fmt::format("{:.2e}", option.divergence));
  }
  print_table(rows);
  print_line(fmt::format("{:.4f} of {} bits per weight; estimated KL {:.4f}, {:.4f} at {} bits everywhere",
                         mixed.bits_per_weight, mixed.target_bits, mixed.divergence, mixed.uniform_divergence,
                         mixed.choices.front().options.front().bits));
}

void print_plan(const Plan& plan, const TimePrediction& time) {
  print_line(fmt::format("{} to {}, written as {}: {} linears, {:.3f} bits per weight", plan.method,
                         scheme_text(plan), plan.format, plan.modules.size(), plan.bits_per_weight()));
  std::vector<std::vector<std::string>> rows = {{"memory", "bytes"}};
  for (const MemoryItem& item : plan.costs.memory) rows.push_back({item.what, bytes_text(item.bytes)});
  rows.push_back({"peak", bytes_text(plan.costs.peak_bytes)});
  print_table(rows);
  if (plan.device_room) {
    rows = {{plan.devices.empty() ? "on the device" : "on each device", "bytes"}};
    for (const MemoryItem& item : plan.costs.device_memory)
      rows.push_back({item.what, bytes_text(item.bytes)});
    rows.push_back({"peak", bytes_text(plan.costs.device_bytes)});
    rows.push_back({"to be had", bytes_text(plan.device_room->free_bytes)});
    print_table(rows);
  } else {
    for (const std::string& device : plan.devices)
      print_line(
          fmt::format("on {}: {} of weights, chunks and sums", device, bytes_text(plan.costs.device_bytes)));
  }
  print_reads(plan.costs.reads);
  print_line(fmt::format("writes {}, {:.2f} TFLOP, activations in chunks of {} tokens",
                         bytes_text(plan.bytes_written()), plan.costs.flops / 1e12, plan.chunk_tokens));
  if (plan.needs_calibration)
    print_line(fmt::format(
        "inputs of o and down: {}; the residual stream: {}",
        plan.keep_inputs ? plan.device_room ? "kept on the device" : "kept in memory" : "computed again",
        plan.activations_in_file   ? "in a file beside the output"
        : plan.activations_on_host ? "in the host's memory, a chunk on the device"
        : plan.device_room         ? "on the device"
                                   : "in memory"));
  print_time(time);
  if (!plan.devices.empty()) print_line("the time is that of the first device alone");
  if (plan.mixed) print_choices(*plan.mixed);
  for (const std::string& warning : plan.warnings) print_line("warning: " + warning);
}

Json list_json(const std::vector<std::string>& lines) {
  Json list = Json::array();
  for (const std::string& line : lines) list.push_back(line);
  return list;
}

// What the report needs beyond the pipeline's own findings: the plan's figure beside the measured one, and
// the evaluation.
Json run_json(const Outcome& o) {
  Json run = o.report.to_json();
  run["left_dense"] = list_json(o.plan.ignored);
  if (o.plan.mixed) run["mixed"] = o.plan.mixed->to_json();
  if (!o.plan.devices.empty()) run["devices"] = list_json(o.plan.devices);
  run["memory"] = Json::object({{"planned_peak_bytes", o.plan.costs.peak_bytes},
                                {"peak_rss_bytes", o.peak_rss_bytes},
                                {"peak_device_bytes", o.peak_device_bytes}});
  if (o.plan.device_room) run["memory"]["planned_device_bytes"] = o.plan.costs.device_bytes;
  run["disk"] = traffic_json(o.disk);
  if (o.prediction) {
    run["time"] = o.prediction->to_json();
    run["time"]["found_seconds"] = o.report.seconds;
  }
  if (o.evaluation) run["evaluation"] = evaluation_json(*o.evaluation, o.facts.model);
  return run;
}

CardFacts card_facts(const Outcome& o) {
  CardFacts card;
  card.title = Path(o.recipe.output).filename().string();
  if (!o.evaluation) return card;
  const Evaluation& evaluation = o.evaluation->evaluation;
  const PerplexityResult& r = evaluation.result;
  card.protocol = fmt::format("{}, {} windows", evaluation.protocol, r.windows);
  card.text = evaluation.text == "builtin:wikitext-2" ? "WikiText-2 test" : evaluation.text;
  card.measured.push_back({"original", o.original_bytes, 16, r.against->reference_ppl, 0, {}, {}});
  card.measured.push_back({"this model", o.facts.bytes_out, o.facts.bits_per_weight, r.ppl, r.ppl_stderr,
                           r.against->kl_mean, r.against->top1_agreement});
  return card;
}

std::vector<std::pair<std::string, std::string>> documents(const Outcome& o) {
  const Json report = make_report(o.facts, o.loaders, run_json(o));
  return {{"report.json", report.dump(1) + "\n"},
          {"report.html", make_html_report(report)},
          {"README.md", make_model_card(o.facts, card_facts(o), o.loaders)}};
}

double whole_model_bits(const ModelSpec& spec, std::uint64_t bytes) {
  return 8.0 * static_cast<double>(bytes) / static_cast<double>(spec.parameters());
}

OutputTarget output_target(const Outcome& o, const Options& options) {
  OutputTarget target{o.recipe.output, options.overwrite};
  target.job = o.facts.job;
  target.measured = o.bits.measured;
  target.restart = options.restart;
  target.versioned = o.recipe.versioned;
  target.keep = o.recipe.keep;
  return target;
}

void choose_bits(Outcome& o, const LoadedModel& model, Backend& backend, const Options& options,
                 const GlobalOptions& globals) {
  if (options.allow_nonfinite)
    fail(ErrorKind::kUnsupported, {"weights that are not finite cannot be measured",
                                   {},
                                   "--allow-nonfinite",
                                   "leave out --target-bits, or repair the checkpoint"});
  if (o.calibration.samples.empty())
    o.calibration = load_calibration(system_io(), o.plan.calibration, model.tokenizer);
  o.bits = choose_bits(o.plan, o.recipe, model, o.calibration, backend, globals,
                       options.dry_run ? Json() : measured_before(system_io(), output_target(o, options)));
}

// What the run reads of the model, where `finished` blocks were there already.
void plan_reads(Outcome& o, const LoadedModel& model, std::int64_t finished) {
  o.plan.costs.reads = o.whole_file_reads;
  if (o.probe_bytes > 0) o.plan.costs.reads.push_back({"prediction of time", o.probe_bytes});
  Plan plan = o.plan;
  if (o.bits.taken_up) plan.target_bits.reset();  // an interrupted run has measured
  for (ReadPass& pass : read_passes(plan, model.checkpoint, model.spec, finished))
    o.plan.costs.reads.push_back(std::move(pass));
  o.disk.reads = o.plan.costs.reads;
  o.disk.planned_bytes_written = o.plan.bytes_written();
}

// Measured before the output has its name: what misses a gate is published all the same, but does not become
// `latest`.
void run_job(Outcome& o, const LoadedModel& model, const std::vector<std::shared_ptr<Backend>>& devices,
             const Options& options, const GlobalOptions& globals, const RunFiles& run_files,
             RunProvenance& provenance) {
  const auto start = std::chrono::steady_clock::now();
  const std::uint64_t written_before = system_io().counters().bytes_written;
  const auto writer = open_writer(system_io(), o.plan.format, output_target(o, options), model.checkpoint,
                                  model.spec, o.plan.modules, o.plan.ignored, o.plan.kv_cache);
  PipelineOptions pipeline;
  pipeline.allow_nonfinite = options.allow_nonfinite;
  pipeline.io = run_files.scratch.get();
  pipeline.scratch_directory = directory_of(o.recipe.output);
  pipeline.further_devices.assign(devices.begin() + 1, devices.end());
  pipeline.on_step = [](const std::string&, const std::string&) { throw_if_interrupted(); };
  o.report =
      run_pipeline(o.plan, model.checkpoint, model.spec, o.calibration, *devices.front(), *writer, pipeline);
  o.peak_rss_bytes = peak_resident_bytes();
  for (const std::shared_ptr<Backend>& device : devices)
    o.peak_device_bytes = std::max(o.peak_device_bytes, device->peak_bytes());
  o.facts.bytes_out = writer->bytes();
  o.facts.bits_per_weight = stored_bits_per_weight(o.plan.format, o.plan.modules);
  o.facts.bits_per_weight_total = whole_model_bits(model.spec, writer->bytes());
  o.facts.calibration = calibration_json(o.recipe, o.calibration);
  provenance.facts().calibration = o.facts.calibration;
  o.facts.digest = writer->complete();
  provenance.wait();
  o.disk.bytes_read = run_files.model->counters().bytes_read;
  o.disk.bytes_written = system_io().counters().bytes_written - written_before;
  o.disk.scratch_bytes_written = run_files.scratch->counters().bytes_written;
  o.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  plan_reads(o, model, o.report.resumed_blocks);
  if (o.recipe.evaluate)
    o.evaluation =
        evaluate_output(*o.recipe.evaluate, writer->directory().string(), model, devices.front(), globals);
  o.version = writer->publish(
      documents(o), [&](const std::vector<NamedDigest>& files) { return provenance.manifest(files); },
      !o.evaluation || all_met(o.evaluation->gates));
}

Json outcome_json(const Outcome& o) {
  Json fallbacks = Json::array();
  for (const Fallback& fallback : o.report.fallbacks)
    fallbacks.push_back(Json::object({{"module", fallback.module}, {"reason", fallback.reason}}));
  Json document = Json::object({{"schema", "llmq.quantize/1"},
                                {"status", "done"},
                                {"output", o.recipe.output},
                                {"version", o.version.empty() ? Json() : Json(o.version)},
                                {"method", o.plan.method},
                                {"scheme", scheme_text(o.plan)},
                                {"format", o.plan.format},
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
                                {"modules", static_cast<std::int64_t>(o.plan.modules.size())},
                                {"calibration", o.facts.calibration},
                                {"fallbacks", fallbacks},
                                {"warnings", list_json(o.report.warnings)},
                                {"resumed_blocks", o.report.resumed_blocks},
                                {"digest", o.facts.digest}});
  add_traffic(document, o.disk);
  if (o.plan.mixed) {
    document["mixed"] = o.plan.mixed->to_json();
    document["mixed"]["measured_before"] = o.bits.taken_up;
  }
  if (o.evaluation) document["evaluation"] = evaluation_json(*o.evaluation, o.facts.model);
  return document;
}

void print_outcome(const Outcome& o) {
  print_line(fmt::format(
      "{}: {} linears to {} by {}, {} from {}, {:.3f} bits per weight ({:.3f} over the whole model)",
      o.recipe.output, o.plan.modules.size(), scheme_text(o.plan), o.plan.method,
      bytes_text(o.facts.bytes_out), bytes_text(o.facts.bytes_in), o.facts.bits_per_weight,
      o.facts.bits_per_weight_total));
  const std::string there = o.peak_device_bytes == 0
                                ? std::string()
                                : fmt::format(" and {} of the device", bytes_text(o.peak_device_bytes));
  print_line(fmt::format("{}, peak memory {} (planned {}){}, {}", seconds_text(o.seconds),
                         bytes_text(o.peak_rss_bytes), bytes_text(o.plan.costs.peak_bytes), there,
                         o.facts.digest));
  print_traffic(o.disk);
  for (const Fallback& fallback : o.report.fallbacks)
    print_line("fallback: " + fallback.module + ": " + fallback.reason);
  for (const std::string& warning : o.report.warnings) print_line("warning: " + warning);
  print_evaluation(o.evaluation, o.recipe);
}

int quantize(Outcome& o, const Options& options, const Session& session) {
  const GlobalOptions& globals = session.globals;
  const auto start = std::chrono::steady_clock::now();
  const RunFiles files(options.direct_io ? Reading::kDirect : Reading::kCached);
  const LoadedModel model = open_model(*files.model, o.recipe.model);
  const std::vector<std::shared_ptr<Backend>> devices =
      chosen_devices(globals, options.devices ? parse_devices(*options.devices) : std::vector<int>(),
                     wanted_arithmetic(o.recipe));
  const std::shared_ptr<Backend>& backend = devices.front();
  o.plan = make_plan(o.recipe, model.checkpoint, model.spec, chosen_compute(globals, Compute::kBFloat16),
                     backend->threads(), parse_bytes(globals.memory_limit, "--memory-limit"),
                     planned_devices(devices));
  if (const std::string slower = host_factorization(*backend); o.plan.traits->factorizes && !slower.empty())
    o.plan.warnings.push_back(slower);
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  o.plan.bytes_copied = companion_bytes(model.checkpoint, *files.model);
  DigestCache digests(system_io(), options.paranoid ? Path() : DigestCache::default_file());
  o.whole_file_reads = whole_file_reads(model.checkpoint, *files.model, digests);
  if (!options.dry_run) {
    if (o.plan.needs_calibration || o.plan.target_bits)
      o.calibration = load_calibration(system_io(), o.plan.calibration, model.tokenizer);
    o.facts.job = make_job(o.recipe, model, o.calibration, o.plan.compute, *backend, options.allow_nonfinite,
                           [&](const Path& path) { return digests.sha256(path, *files.model); });
    const std::optional<PublishedOutput> found =
        unchanged_output(system_io(), output_target(o, options), o.recipe.to_json().at("evaluate"), digests);
    digests.save();
    o.seconds = elapsed();
    if (found)
      return report_unchanged(*found,
                              {o.recipe.output, compute_name(o.plan.compute), o.plan.modules.size(),
                               o.seconds, options.strict, options.metrics_out},
                              globals);
  }
  const double before_measuring = elapsed();
  if (o.plan.target_bits) choose_bits(o, model, *backend, options, globals);
  const double measuring = elapsed() - before_measuring;
  if (options.dry_run || is_long(o.plan.costs.flops, o.plan.costs.bytes_in)) {
    const std::uint64_t before = files.model->counters().bytes_read;
    o.prediction = predict_time(o.plan, model.checkpoint, model.spec, *backend, *files.scratch,
                                directory_of(o.recipe.output));
    o.probe_bytes = files.model->counters().bytes_read - before;
  }
  if (!options.dry_run && o.prediction && !o.prediction->unknown.empty()) o.prediction.reset();
  plan_reads(o, model, 0);
  if (options.dry_run) {
    Json plan = o.plan.to_json();
    if (o.plan.target_bits) o.prediction->add("measuring pass of mixed precision", measuring);
    plan["time"] = o.prediction->to_json();
    if (globals.json)
      print_json(plan);
    else
      print_plan(o.plan, *o.prediction);
    return 0;
  }
  for (const std::string& warning : o.plan.warnings) Log::get().warn(warning);
  o.facts.version = version_text();
  o.facts.command = session.command_line;
  o.facts.model = o.recipe.model;
  o.facts.method = o.plan.method;
  o.facts.scheme = scheme_text(o.plan);
  o.facts.format = o.plan.format;
  o.facts.recipe = o.recipe.to_json();
  o.facts.bytes_in = o.original_bytes = model.checkpoint.tensor_bytes();
  o.loaders = loader_verdicts(o.plan.format, o.plan.modules, o.recipe.output);
  o.seconds = elapsed();
  RunProvenance provenance(
      system_io(), *files.model, digests,
      input_files(system_io(), o.recipe, o.plan.needs_calibration || o.plan.target_bits, model.checkpoint),
      provenance_facts(o.recipe, *backend, o.plan.compute, session));
  provenance.facts().allow_nonfinite = options.allow_nonfinite;
  run_job(o, model, devices, options, globals, files, provenance);
  const bool gates_met = !o.evaluation || all_met(o.evaluation->gates);
  const int code = !gates_met || (options.strict && !o.report.fallbacks.empty()) ? 3 : 0;
  write_metrics(system_io(), options.metrics_out, outcome_json(o), code);
  if (globals.json)
    print_json(outcome_json(o));
  else
    print_outcome(o);
  return code;
}

int run(const Options& options, const Session& session) {
  if (options.resume && options.restart)
    fail(ErrorKind::kUsage, {"a run goes on or starts again", {}, "--resume --restart", "leave one out"});
  watch_signals();
  Outcome o;
  o.recipe = resolve_recipe(options);
  if (o.recipe.format == "gguf" && o.recipe.target_bits)
    fail(ErrorKind::kUnsupported,
         {"a budget of bits is not for format gguf, whose mixes choose types themselves", o.recipe.source,
          "target_bits", "write scheme: q4_k_m"});
  if (o.recipe.format == "gguf" && options.devices)
    fail(ErrorKind::kUnsupported,
         {"a GGUF output is made on one device", o.recipe.source, "--devices", "leave it out"});
  try {
    if (o.recipe.format == "gguf")
      return quantize_to_gguf(o.recipe,
                              {options.dry_run, options.overwrite, options.restart, options.paranoid,
                               options.direct_io, options.metrics_out},
                              session);
    return quantize(o, options, session);
  } catch (const Interrupted& signal) {
    return report_interrupted(o.recipe.output, signal, session);
  }
}

}  // namespace

void add_quantize(CLI::App& app, Session& session) {
  auto options = std::make_shared<Options>();
  CLI::App* command = declare_command(
      app, "quantize", "Turn a checkpoint into a packed INT4 or INT8 one",
      "  llmq quantize --method awq --recipe recipes/qwen32b.yaml\n"
      "  llmq quantize --method awq --model DIR --output out/model-awq --set scheme=w4a16_g64_asym\n"
      "  llmq quantize --method awq,gptq --model DIR --output out/model-best --set scheme=w4a16_g64_asym\n"
      "  llmq quantize --method imatrix --model DIR --output out/model.gguf --set format=gguf --set "
      "scheme=q4_k_m\n"
      "  llmq quantize --recipe recipes/smollm2.yaml --dry-run\n");
  command
      ->add_option("--recipe", options->recipe,
                   "What to do, in YAML: llmq's own form, or an llm-compressor recipe")
      ->type_name("FILE");
  command
      ->add_option("--method", options->method,
                   "rtn, awq, gptq, smoothquant, or a list such as awq,gptq; imatrix for GGUF; overrides "
                   "the recipe")
      ->type_name("NAME");
  command
      ->add_option("--target-bits", options->target_bits,
                   "Mixed precision: choose each linear's bits within this many stored bits per weight")
      ->type_name("N");
  command->add_option("--model", options->model, "Model to quantize: directory, .gguf file or hub name")
      ->type_name("MODEL");
  command->add_option("--output", options->output, "Directory, or .gguf file, to write")->type_name("DIR");
  command
      ->add_option("--set", options->settings,
                   "Change one key of the recipe, such as scheme=w4a16_g64_asym or calibration.samples=64")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  add_devices_option(*command, options->devices);
  command->add_flag("--dry-run", options->dry_run, "Print the plan with its memory, disk and work, and stop");
  command->add_flag("--overwrite", options->overwrite, "Replace an earlier output of llmq");
  command->add_flag("--strict", options->strict, "Exit 3 when any module fell back to another method");
  command->add_flag("--allow-nonfinite", options->allow_nonfinite,
                    "Go on when a weight holds NaN or infinity");
  command
      ->add_option("--metrics-out", options->metrics_out,
                   "Directory for the run's figures: metrics.json and llmq.prom (Prometheus)")
      ->type_name("DIR");
  command->add_flag(
      "--portable", options->portable,
      "The same bytes on every x86-64 with AVX2, whatever else it has; slower where it has more");
  command->add_flag("--resume", options->resume,
                    "Go on with an interrupted run of the same job, as is done without being asked");
  command->add_flag("--restart", options->restart,
                    "Start again: throw away what an interrupted run left, redo what is unchanged");
  command->add_flag(
      "--direct-io", options->direct_io,
      "Read the model past the page cache (O_DIRECT), which leaves what others have there alone");
  command->add_flag("--paranoid", options->paranoid,
                    "Hash every input again instead of trusting size and times");
  command->callback(
      [options, &session] { session.run = [options, &session] { return run(*options, session); }; });
}

}  // namespace llmq::tools

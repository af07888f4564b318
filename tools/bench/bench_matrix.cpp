#include "tools/bench/bench_matrix.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "calibration/calibration_text.h"
#include "evaluate/study_report.h"
#include "export/inspect.h"
#include "job/evaluation.h"
#include "job/served_kernels.h"
#include "tools/bench/bench_output.h"
#include "tools/bench/served_load.h"
#include "tools/interrupt.h"
#include "tools/machine_figures.h"
#include "tools/print.h"

namespace llmq::tools {
namespace {

constexpr std::int64_t kRequestsOfEach = 4;
constexpr double kHalfShared = 0.5;
constexpr const char* kNoQuantized = "no quantized model was given (--quantized)";

std::vector<StudyConfiguration> five(const ServeBench& load, const MatrixBench& options) {
  const std::string& quantized = options.quantized;
  const std::string draft = load.engine.draft.draft.empty() ? "ngram" : load.engine.draft.draft;
  std::vector<StudyConfiguration> list(5);
  const auto set = [&](std::size_t i, const char* name, const std::string& model, const std::string& guesses,
                       bool caches) {
    list[i].name = name;
    list[i].model = model;
    list[i].draft = guesses;
    list[i].prefix_caching = caches;
    if (model.empty())
      list[i].missing = kNoQuantized;
    else
      list[i].scheme = inspect(system_io(), model, false).scheme;
  };
  set(0, "baseline", load.engine.model, "", false);
  set(1, "quantized", quantized, "", false);
  set(2, "speculation", quantized, draft, false);
  set(3, "prefix_cache", quantized, "", true);
  set(4, "all", quantized, draft, true);
  return list;
}

EngineFlags flags_of(const StudyConfiguration& configuration, const EngineFlags& given,
                     std::int64_t most_clients) {
  EngineFlags flags = given;
  flags.model = configuration.model;
  if (configuration.name == "baseline") flags.head = "stored";
  flags.draft.draft = configuration.draft;
  if (configuration.draft.empty()) flags.draft.given_tokens.reset();
  flags.no_prefix_caching = !configuration.prefix_caching;
  flags.limits.max_num_seqs = most_clients;
  return flags;
}

// The perplexity of each model once: neither speculation nor the prefix cache changes what a model says.
void measure_quality(const ServeBench& load, const MatrixBench& options,
                     const std::shared_ptr<Backend>& backend, Compute compute, StudyReport& report) {
  EvaluationRequest request;
  request.text = options.text;
  request.max_windows = options.max_windows;
  request.compute = compute;
  request.on_window = throw_if_interrupted;
  const LoadedModel baseline = open_model(system_io(), load.engine.model);
  std::optional<LoadedModel> quantized;
  if (!options.quantized.empty()) {
    quantized = open_model(system_io(), options.quantized);
    const std::string text =
        read_text(system_io(), resolve_text(system_io(), options.text), std::uint64_t{1} << 32);
    if (quantized->tokenizer.encode(text) != baseline.tokenizer.encode(text))
      fail(ErrorKind::kBadInput,
           {"its tokenizer gives other ids for the text than that of " + load.engine.model, options.quantized,
            "--quantized", "give a model that was made from it"});
    // a draft that does not fit is refused before the hours of measuring
    open_draft(load.engine.draft, *quantized);
  }
  const auto measure = [&](const LoadedModel& model, const char* head) {
    request.head = head_weight(head);
    const Evaluation evaluation = evaluate(model, nullptr, backend, request);
    report.text = {evaluation.protocol, evaluation.text, evaluation.text_sha256, evaluation.result.windows};
    for (StudyConfiguration& configuration : report.configurations) {
      if (configuration.model != model.name || configuration.ppl) continue;
      configuration.ppl = evaluation.result.ppl;
      configuration.ppl_stderr = evaluation.result.ppl_stderr;
      if (&model == &baseline) break;  // its head is the stored one
    }
  };
  measure(baseline, "stored");
  if (quantized) measure(*quantized, load.engine.head.c_str());
}

// Every configuration has the same requests, and a server of its own.
void measure_rows(StudyConfiguration& configuration, const ServeBench& load,
                  const std::vector<std::int64_t>& batches, const GlobalOptions& globals, Compute compute,
                  StudyReport& report, Progress& progress) {
  PreparedServer prepared(flags_of(configuration, load.engine, batches.back()), globals, compute);
  fit_load(load.prompt_tokens.has_value(), load.new_tokens.has_value(), prepared.room().context, report.mix);
  const OwnServer server(prepared, batches.back());
  HttpClient client(server.target, patient());
  LoadMix mix = report.mix;
  for (const std::int64_t batch : batches) {
    mix.requests = report.mix.requests * batch;
    mix.words_seed = 1000 * load.seed + 2 * configuration.rows.size();
    const LoadPace pace{batch, true, false};
    const LoadTarget target{prepared.served().name, {}, !load.may_end};
    const LoadRow& row = configuration.rows.emplace_back(
        measure_load(client, target, mix, pace, std::numeric_limits<double>::infinity(), true));
    progress.advance(1, fmt::format("{} · batch {}", configuration.name, batch),
                     fmt::format("{:.1f} tokens/s", row.result.tokens_per_second), true);
  }
}

void print_study(const StudyReport& report) {
  print_line(fmt::format("{} and {}, {} compute, suite matrix", report.model,
                         report.quantized.empty() ? "no quantized model" : report.quantized, report.compute));
  print_line(load_words(report.mix, "a client"));
  print_table(report.figures());
  for (const std::string& sentence : report.sentences()) print_line(sentence);
  print_line("What to deploy, of what was measured:");
  print_table(report.decisions());
}

bool warn_of_failures(const StudyReport& report) {
  bool all = true;
  for (const StudyConfiguration& configuration : report.configurations)
    for (const LoadRow& row : configuration.rows)
      all = warn_of_failed_requests(row, fmt::format("{}, batch {}", configuration.name, row.clients)) && all;
  warn_if_unsteady(*report.machine);
  return all;
}

}  // namespace

int bench_matrix(const ServeBench& load, const MatrixBench& options, const std::vector<std::int64_t>& batches,
                 const GlobalOptions& globals) {
  check_matrix(load, options);
  const Compute compute = chosen_compute(globals, Compute::kBFloat16);
  StudyReport report;
  report.model = load.engine.model;
  report.quantized = options.quantized;
  report.compute = compute_name(compute);
  report.price_per_hour = load.price_per_hour;
  report.targets = targets_of(options);
  report.mix = mix_of(load);
  report.mix.requests = load.requests.value_or(kRequestsOfEach);
  report.mix.shared_share = load.shared_prefix.value_or(kHalfShared);
  report.configurations = five(load, options);
  for (const StudyConfiguration& configuration : report.configurations)
    check_engine_flags(flags_of(configuration, load.engine, batches.back()), compute);
  {
    const std::shared_ptr<Backend> backend = chosen_backend(globals);
    report.machine = measure_figures(*backend, compute);
    measure_quality(load, options, backend, compute, report);
  }
  Progress progress("bench", static_cast<double>(5 * batches.size()));
  for (StudyConfiguration& configuration : report.configurations)
    if (configuration.missing.empty())
      measure_rows(configuration, load, batches, globals, compute, report, progress);
  measure_bandwidth_again(*report.machine, *chosen_backend(globals));
  put_out(report, load, globals, print_study);
  return warn_of_failures(report) ? 0 : 3;
}

}  // namespace llmq::tools

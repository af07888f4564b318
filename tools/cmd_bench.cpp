// llmq bench MODEL: how fast it reads prompts and writes tokens, beside what the machine can do at most.
#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "device/cpu/cpu_backend.h"
#include "evaluate/speed_report.h"
#include "export/inspect.h"
#include "tools/command.h"
#include "tools/help.h"
#include "tools/interrupt.h"
#include "tools/loaded_model.h"
#include "tools/print.h"

namespace llmq::tools {
namespace {

struct Options {
  std::string model, suite = "latency", csv, html, endpoint, head = "stored";
  std::vector<std::int64_t> batches;
  std::optional<std::int64_t> prompt_tokens, new_tokens;
  std::optional<int> runs;
  std::optional<double> price_per_hour;
};

void check(const Options& options) {
  if (!options.endpoint.empty())
    fail(ErrorKind::kUnsupported,
         {"driving a server is not part of this version", {}, "--endpoint", "give a model and leave it out"});
  if (options.suite == "serve" || options.suite == "matrix")
    fail(ErrorKind::kUnsupported,
         {"suite '" + options.suite + "' is not part of this version",
          {},
          "--suite",
          "use latency or throughput"});
  if (options.suite != "latency" && options.suite != "throughput")
    fail(ErrorKind::kUsage,
         {"suite '" + options.suite + "' is not known", {}, "--suite", "use latency or throughput"});
  for (const std::int64_t batch : options.batches)
    if (batch < 1 || batch > 4096)
      fail(ErrorKind::kUsage, {fmt::format("a batch of {}", batch), {}, "--batch", "give 1 .. 4096"});
  if (options.price_per_hour && !(*options.price_per_hour > 0))
    fail(ErrorKind::kUsage,
         {"a price that is not positive", {}, "--price-per-hour", "give what an hour of this machine costs"});
}

// Latency: one sequence, a short and a long prompt. Throughput: more and more sequences.
std::vector<SpeedCase> cases_of(const Options& options, const ModelSpec& spec) {
  const bool latency = options.suite == "latency";
  std::vector<std::int64_t> batches = options.batches, prompts = {128};
  if (batches.empty())
    batches = latency ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{1, 4, 8, 16, 32};
  if (latency) prompts.push_back(512);
  if (options.prompt_tokens) prompts = {*options.prompt_tokens};
  const std::int64_t added = options.new_tokens.value_or(64);
  std::vector<SpeedCase> cases;
  for (const std::int64_t batch : batches)
    for (const std::int64_t prompt : prompts) {
      SpeedCase one{batch, prompt, added, options.runs.value_or(latency ? 5 : 2)};
      if (!options.prompt_tokens) one.prompt_tokens = std::min(prompt, spec.max_position / 2);
      if (!options.new_tokens) one.new_tokens = std::min(added, spec.max_position / 4);
      if (one.prompt_tokens < 1 || one.new_tokens < 2 || one.runs < 1 ||
          one.prompt_tokens + one.new_tokens > spec.max_position)
        fail(ErrorKind::kUsage, {fmt::format("{} prompt and {} new tokens, {} runs: the model has {} "
                                             "positions, and two new tokens are the fewest",
                                             one.prompt_tokens, one.new_tokens, one.runs, spec.max_position),
                                 {},
                                 "--prompt-tokens",
                                 "give figures that fit"});
      cases.push_back(one);
    }
  return cases;
}

Engine load_for(const LoadedModel& model, const std::shared_ptr<Backend>& backend, Compute compute,
                std::span<const SpeedCase> cases, HeadWeight head) {
  Engine::Options options;
  options.compute = compute;
  options.head = head;
  options.max_context = options.kv_tokens = 0;
  for (const SpeedCase& one : cases) {
    const std::int64_t length = one.prompt_tokens + one.new_tokens;
    options.max_context = std::max(options.max_context, length);
    const std::int64_t whole_blocks =
        (length + options.block_size - 1) / options.block_size * options.block_size;
    options.kv_tokens = std::max(options.kv_tokens, one.batch * whole_blocks);
  }
  return Engine::load(model.checkpoint, backend, options);
}

// Of the level in use; of its FP32 products where it has no instruction for BF16.
double peak_in(const MachinePeaks& machine, Compute compute) {
  const ArithmeticKind kind = compute == Compute::kBFloat16 ? ArithmeticKind::kBF16 : ArithmeticKind::kF32;
  double peak = 0;
  for (const LevelPeak& level : machine.arithmetic)
    if (level.level == chosen_cpu_level() && (level.kind == kind || peak == 0)) peak = level.peak.by_clock;
  return peak;
}

void print_for_people(const SpeedReport& report) {
  const MachinePeaks& machine = report.machine;
  print_line(fmt::format("{} ({}), {} compute, suite {}", report.model, report.config, report.compute,
                         report.suite));
  print_line(fmt::format("{}, {}, {} threads: reads {:.1f} GB/s, at most {:.0f} GFLOP/s in {}", machine.cpu,
                         report.isa, machine.threads, report.read_bytes_per_second() * 1e-9,
                         report.peak_operations_per_second * 1e-9, report.compute));
  std::vector<std::vector<std::string>> rows = {{"batch", "prompt", "new", "ttft p50", "p95 ms", "itl p50",
                                                 "p95 ms", "prefill tok/s", "decode tok/s", "MB/token",
                                                 "of bandwidth", "memory"}};
  for (const SpeedRow& row : report.rows) {
    const SpeedResult& r = row.result;
    rows.push_back({std::to_string(r.asked.batch), std::to_string(r.asked.prompt_tokens),
                    std::to_string(r.asked.new_tokens), fmt::format("{:.1f}", 1e3 * r.ttft_p50),
                    fmt::format("{:.1f}", 1e3 * r.ttft_p95), fmt::format("{:.2f}", 1e3 * r.itl_p50),
                    fmt::format("{:.2f}", 1e3 * r.itl_p95),
                    fmt::format("{:.0f}", r.prefill_tokens_per_second),
                    fmt::format("{:.1f}", r.tokens_per_second),
                    fmt::format("{:.1f}", r.bytes_per_step / static_cast<double>(r.asked.batch) * 1e-6),
                    fmt::format("{:.0f} %", 100 * r.bandwidth_fraction(report.read_bytes_per_second())),
                    bytes_text(row.peak_memory_bytes)});
  }
  print_table(rows);
  for (const SpeedRow& row : report.rows)
    if (const std::optional<double> cost = report.cost_per_million_tokens(row))
      print_line(fmt::format("batch {}: {:.4g} per million tokens", row.result.asked.batch, *cost));
  if (report.unsteady())
    print_line("the read bandwidth changed by more than a tenth meanwhile: something else was running");
}

int run(const Options& options, const GlobalOptions& globals) {
  check(options);
  watch_signals();
  const LoadedModel model = open_model(system_io(), options.model);
  const std::vector<SpeedCase> cases = cases_of(options, model.spec);
  const std::shared_ptr<Backend> backend = chosen_backend(globals);
  const Compute compute = chosen_compute(globals, Compute::kBFloat16);
  SpeedReport report;
  report.model = options.model;
  report.config = inspect(system_io(), options.model, false).scheme;
  report.suite = options.suite;
  report.compute = compute_name(compute);
  report.isa = backend->arithmetic();
  if (report.isa.starts_with("cpu ")) report.isa.erase(0, 4);
  report.price_per_hour = options.price_per_hour;
  report.machine = measure_machine(backend->threads());
  report.peak_operations_per_second = peak_in(report.machine, compute);

  Engine engine = load_for(model, backend, compute, cases, head_weight(options.head));
  log_kernels(engine);
  Progress progress("bench", static_cast<double>(cases.size()));
  for (const SpeedCase& one : cases) {
    forget_peak_resident();  // the machine's measurement took more than the model may
    SpeedRow row{measure_speed(engine, one, throw_if_interrupted), 0};
    row.peak_memory_bytes = peak_resident_bytes();
    report.rows.push_back(row);
    progress.advance(1, fmt::format("batch {} · prompt {}", one.batch, one.prompt_tokens),
                     fmt::format("{:.1f} tokens/s", row.result.tokens_per_second), true);
  }
  ThreadPool pool(backend->threads());
  report.read_bytes_per_second_after = measure_read_bandwidth(pool);
  if (!options.csv.empty()) write_text_atomically(system_io(), options.csv, report.to_csv());
  if (!options.html.empty()) write_text_atomically(system_io(), options.html, report.to_html());
  if (globals.json)
    print_json(report.to_json());
  else
    print_for_people(report);
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Session& session) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      declare_command(app, "bench", "Measure speed and memory beside what the machine can do at most",
                      "  llmq bench out/model-awq\n  llmq bench out/model-awq --suite throughput --batch "
                      "1,8,16 --csv speed.csv\n");
  command->add_option("model", options->model, "Model to run: directory, .gguf file or hub name")
      ->required()
      ->type_name("");
  command
      ->add_option("--head", options->head, "Output head: stored, or int8, as generate --head int8 runs it")
      ->type_name("TYPE")
      ->capture_default_str();
  command
      ->add_option("--suite", options->suite, "latency (one sequence) or throughput (more and more at once)")
      ->type_name("NAME")
      ->capture_default_str();
  command
      ->add_option("--batch", options->batches,
                   "Sequences at a time; 1 for latency, 1,4,8,16,32 for throughput")
      ->delimiter(',')
      ->type_name("N,...")
      ->allow_extra_args(false);
  command
      ->add_option("--prompt-tokens", options->prompt_tokens,
                   "Tokens of each prompt; 128 and 512 for latency, 128 for throughput")
      ->type_name("N");
  command
      ->add_option("--new-tokens", options->new_tokens, "Tokens to write for each prompt; 64 when left out")
      ->type_name("N");
  command
      ->add_option("--runs", options->runs,
                   "Times each case is measured after the warm-up; 5 for latency, 2 for throughput")
      ->type_name("N");
  command
      ->add_option("--price-per-hour", options->price_per_hour,
                   "What an hour of this machine costs, for the cost per million tokens")
      ->type_name("X");
  command->add_option("--csv", options->csv, "Write the rows to this file, too")->type_name("FILE");
  command->add_option("--html", options->html, "Write a page with the figures, too")->type_name("FILE");
  command->add_option("--endpoint", options->endpoint, "Drive a server instead (not in this version)")
      ->type_name("URL");
  command->callback(
      [options, &session] { session.run = [options, &session] { return run(*options, session.globals); }; });
}

}  // namespace llmq::tools

#include "tools/bench/bench_speed.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/resident_memory.h"
#include "evaluate/speed_report.h"
#include "export/inspect.h"
#include "job/kv_cache_choice.h"
#include "job/loaded_model.h"
#include "job/served_kernels.h"
#include "tools/bench/bench_output.h"
#include "tools/interrupt.h"
#include "tools/machine_figures.h"
#include "tools/print.h"

namespace llmq::tools {
namespace {

// Latency: one sequence, a short and a long prompt. Throughput: more and more sequences.
std::vector<SpeedCase> cases_of(const SpeedBench& options, const ServeBench& serve, const ModelSpec& spec) {
  const bool latency = options.suite == "latency";
  std::vector<std::int64_t> prompts = {128};
  if (latency) prompts.push_back(512);
  if (serve.prompt_tokens) prompts = {*serve.prompt_tokens};
  const std::int64_t added = serve.new_tokens.value_or(64);
  std::vector<SpeedCase> cases;
  for (const std::int64_t batch : options.batches)
    for (const std::int64_t prompt : prompts) {
      SpeedCase one{batch, prompt, added, options.runs.value_or(latency ? 5 : 2)};
      if (!serve.prompt_tokens) one.prompt_tokens = std::min(prompt, spec.max_position / 2);
      if (!serve.new_tokens) one.new_tokens = std::min(added, spec.max_position / 4);
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
                std::span<const SpeedCase> cases, const EngineFlags& flags) {
  Engine::Options options;
  options.compute = compute;
  options.head = head_weight(flags.head);
  choose_kv_cache(options, flags.kv_cache_dtype, model.tokenizer);
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

void print_speed(const SpeedReport& report) {
  const MachineFigures& machine = report.machine;
  print_line(fmt::format("{} ({}), {} compute, suite {}", report.model, report.config, report.compute,
                         report.suite));
  print_line(fmt::format("{}: reads {:.1f} GB/s, at most {:.0f} GFLOP/s in {}", machine.name(),
                         machine.read_bytes_per_second() * 1e-9, machine.peak_operations_per_second * 1e-9,
                         report.compute));
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
                    fmt::format("{:.0f} %", 100 * r.bandwidth_fraction(machine.read_bytes_per_second())),
                    bytes_text(row.peak_memory_bytes)});
  }
  print_table(rows);
  for (const SpeedRow& row : report.rows)
    if (const std::optional<double> cost =
            cost_per_million_tokens(report.price_per_hour, row.result.tokens_per_second))
      print_line(fmt::format("batch {}: {:.4g} per million tokens", row.result.asked.batch, *cost));
  if (machine.unsteady())
    print_line("the read bandwidth changed by more than a tenth meanwhile: something else was running");
}

}  // namespace

int bench_speed(const SpeedBench& options, const ServeBench& serve, const GlobalOptions& globals) {
  const LoadedModel model = open_model(system_io(), serve.engine.model);
  const std::vector<SpeedCase> cases = cases_of(options, serve, model.spec);
  const std::shared_ptr<Backend> backend = chosen_backend(globals);
  const Compute compute = chosen_compute(globals, Compute::kBFloat16);
  SpeedReport report;
  report.model = serve.engine.model;
  report.config = named_with_kv_cache(inspect(system_io(), serve.engine.model, false).scheme,
                                      serve.engine.kv_cache_dtype);
  report.suite = options.suite;
  report.compute = compute_name(compute);
  report.price_per_hour = serve.price_per_hour;
  report.machine = measure_figures(*backend, compute);

  Engine engine = load_for(model, backend, compute, cases, serve.engine);
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
  measure_bandwidth_again(report.machine, *backend);
  put_out(report, serve, globals, print_speed);
  return 0;
}

}  // namespace llmq::tools

// llmq estimate MODEL: what every scheme takes over batch and context, what does not fit, how fast it could
// be, and which to take.
#include "quant/plan/capacity_estimate.h"

#include "base/error.h"
#include "device/machine_probe.h"
#include "job/documents/estimate_page.h"
#include "tools/command.h"
#include "tools/help.h"
#include "tools/print.h"

namespace llmq::tools {
namespace {

struct EstimateOptions {
  std::string model, budget, machine, html;
  EstimateRequest request;
};

MachineRates chosen_machine(const EstimateOptions& options, const GlobalOptions& globals, Compute compute) {
  if (options.machine.empty()) return this_machine(probe_machine(*chosen_backend(globals), compute));
  const std::optional<MachineRates> machine = find_machine(options.machine);
  if (!machine)
    fail(ErrorKind::kUsage, {"no machine is called '" + options.machine + "'",
                             {},
                             "--machine",
                             "there are " + machine_names() + "; without the flag it is this one"});
  return *machine;
}

std::string rate_text(double tokens) {
  return (tokens < 1000 ? number_text(tokens, 3) : fmt::format("{:.0f}", tokens)) + "/s";
}

// One row a scheme; a column for each cell: the bytes, "(no)" behind what does not fit, and tokens per
// second.
void print_estimate(const Estimate& e) {
  print_line(fmt::format("{} on {} ({}): {} of memory, {:.1f} GB/s, {:.2f} TFLOP/s in BF16", e.model,
                         e.machine.name, e.machine.source, bytes_text(e.machine.memory_bytes),
                         e.machine.bytes_per_second * 1e-9, e.machine.bfloat16_flops * 1e-12));
  print_line(fmt::format(
      "weights and a KV cache in {} ({}) of {} a token, {}, against {}; decoded tokens a second below",
      e.kv_cache.name, e.kv_reason, bytes_text(e.kv_bytes_per_token), e.kv_cache.words,
      bytes_text(e.budget)));
  if (e.carried_bytes > 0)
    print_line(
        fmt::format("{} of the weights are a tower and what goes with it, which stay as they are and "
                    "which no token of a text reads",
                    bytes_text(e.carried_bytes)));
  std::vector<std::vector<std::string>> rows = {{"scheme", "weights", "prefill"}};
  for (const SchemeEstimate& scheme : e.schemes) {
    if (!scheme.refusal.empty()) continue;
    if (rows.front().size() == 3)
      for (const EstimatedCell& cell : scheme.cells)
        rows.front().push_back(fmt::format("{}x{}", cell.batch, cell.context));
    std::vector<std::string> sizes = {scheme.scheme, bytes_text(scheme.weight_bytes),
                                      rate_text(scheme.prefill_tokens_per_second)};
    std::vector<std::string> speeds = {"", "", ""};
    for (const EstimatedCell& cell : scheme.cells) {
      sizes.push_back(bytes_text(cell.bytes) + (cell.fits ? "" : " (no)"));
      speeds.push_back(cell.fits ? rate_text(cell.decode_tokens_per_second) : "-");
    }
    rows.push_back(std::move(sizes));
    rows.push_back(std::move(speeds));
  }
  print_table(rows);
  for (const SchemeEstimate& scheme : e.schemes)
    if (!scheme.refusal.empty()) print_line(scheme.scheme + ": not for this model: " + scheme.refusal);
  print_line(e.recommended.empty() ? e.reason : fmt::format("take {}: {}", e.recommended, e.reason));
  print_line(e.machine.measured ? "speeds: of llmq's own runtime, which computes 16-bit-input schemes in BF16"
                                : "speeds: upper bounds, of a runtime that computes from the packed weights");
}

int run(const EstimateOptions& options, const GlobalOptions& globals) {
  EstimateRequest request = options.request;
  request.compute = chosen_compute(globals, Compute::kBFloat16);
  request.budget = parse_bytes(options.budget, "--budget");
  const Estimate result =
      estimate(system_io(), options.model, request, chosen_machine(options, globals, request.compute));
  if (!options.html.empty()) write_text_atomically(system_io(), options.html, estimate_page(result));
  if (globals.json)
    print_json(result.to_json());
  else
    print_estimate(result);
  return 0;
}

}  // namespace

void add_estimate(CLI::App& app, Session& session) {
  auto options = std::make_shared<EstimateOptions>();
  CLI::App* command = declare_command(
      app, "estimate", "Say what each scheme would take and how fast it could be, before anything runs",
      "  llmq estimate Qwen/Qwen3-32B --budget 24GiB\n"
      "  llmq estimate DIR --machine h100-sxm --context 8192 --batch 1,16 --kv-cache-dtype int4\n"
      "  llmq estimate DIR --scheme w4a16_g64_asym,q4_k_m\n");
  command->add_option("model", options->model, "Model: directory, .gguf file or hub name")
      ->required()
      ->type_name("");
  const auto list = [&](const char* flag, auto& into, const char* words) {
    command->add_option(flag, into, words)->delimiter(',')->type_name("N,...")->allow_extra_args(false);
  };
  list("--scheme", options->request.schemes,
       "Schemes and GGUF types to look at; 'original' is the model as it is");
  list("--context", options->request.contexts, "Positions of a sequence; by default 2048, 8192 and 32768");
  list("--batch", options->request.batches, "Sequences at a time; by default 1, 8 and 32");
  command
      ->add_option(
          "--kv-cache-dtype", options->request.kv_cache,
          "Type of keys and values: f32, bf16, fp16, int8, int4 or fp8; by default what the checkpoint asks "
          "for, else bf16")
      ->type_name("TYPE");
  command
      ->add_option("--budget", options->budget, "Memory for weights and KV cache; by default the machine's")
      ->type_name("SIZE");
  command->add_option("--machine", options->machine, "Instead of this one: " + machine_names())
      ->type_name("NAME");
  command->add_option("--html", options->html, "Write a page with the figures and a roofline, too")
      ->type_name("FILE");
  command->callback([options, &session] {
    session.only_prints = options->html.empty();
    session.run = [options, &session] { return run(*options, session.globals); };
  });
}

}  // namespace llmq::tools

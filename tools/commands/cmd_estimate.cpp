// llmq estimate MODEL: what every scheme takes over batch and context, what does not fit, how fast it could
// be, and which to take.
#include "quant/plan/capacity_estimate.h"

#include "base/error.h"
#include "device/machine_probe.h"
#include "export/formats/output_format.h"
#include "job/documents/estimate_page.h"
#include "tools/command.h"
#include "tools/flags/devices_option.h"
#include "tools/flags/recipe_words.h"
#include "tools/help.h"
#include "tools/node_words.h"
#include "tools/print.h"

namespace llmq::tools {
namespace {

struct EstimateOptions {
  std::string model, budget, machine, html, network;
  EstimateRequest request;
  int nodes = 0;  // 0: nothing is asked about several
  RecipeWords words;
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

// A quantization of the model, over 1 to so many nodes.
int run_nodes(const EstimateOptions& options, const GlobalOptions& globals) {
  const EstimateRequest& request = options.request;
  if (!options.machine.empty() || !options.html.empty() || !options.budget.empty() ||
      !request.schemes.empty() || !request.contexts.empty() || !request.batches.empty() ||
      !request.kv_cache.empty())
    fail(ErrorKind::kUsage, {"the time of a quantization is predicted on this machine, and has no such flags",
                             {},
                             "--nodes",
                             "leave them out; --recipe, --method, --set and --network are what it takes"});
  Recipe recipe = named_recipe(options.words);
  recipe.model = options.model;
  need_given(!recipe.methods.empty(), "method", "--method");
  if (recipe.output.empty()) recipe.output = is_one_file(recipe.format) ? "model.gguf" : "model";
  QuantizeRequest job{};
  job.recipe = recipe;
  JobSettings settings;
  settings.compute = chosen_compute(globals, settings.compute);
  settings.memory_limit = parse_bytes(globals.memory_limit, "--memory-limit");
  settings.devices = chosen_devices(globals, {}, wanted_arithmetic(recipe), DeviceUse::kCalibration);
  QuantizeJob planned(system_io(), std::move(job), settings);
  const NodeEstimate found =
      estimate_nodes(planned, options.model, options.nodes, network_of(options.network));
  if (globals.json)
    print_json(found.to_json());
  else
    print_nodes(found);
  return 0;
}

int run(const EstimateOptions& options, const GlobalOptions& globals) {
  if (options.nodes != 0) return run_nodes(options, globals);
  if (!options.words.recipe.empty() || !options.words.method.empty() || !options.words.settings.empty() ||
      !options.network.empty() || !globals.memory_limit.empty())
    fail(ErrorKind::kUsage,
         {"--recipe, --method, --set, --network and --memory-limit are of a quantization over several nodes",
          {},
          "--nodes",
          "say how many there are, as in --nodes 8"});
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
      "  llmq estimate DIR --scheme w4a16_g64_asym,q4_k_m\n"
      "  llmq estimate DIR --nodes 8 --recipe recipes/qwen32b.yaml --network 25Gb/s\n");
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
          "Type of keys and values: f32, bf16, fp16, int8, int4, fp8 or fp8_e5m2; by default what the "
          "checkpoint asks for, else bf16")
      ->type_name("TYPE");
  command
      ->add_option("--budget", options->budget, "Memory for weights and KV cache; by default the machine's")
      ->type_name("SIZE");
  command->add_option("--machine", options->machine, "Instead of this one: " + machine_names())
      ->type_name("NAME");
  command->add_option("--html", options->html, "Write a page with the figures and a roofline, too")
      ->type_name("FILE");
  command
      ->add_option("--nodes", options->nodes,
                   "Instead: what a quantization would take on 1, 2, 4 ... and so many machines like this "
                   "one, and where adding them stops paying")
      ->check(CLI::Range(1, 65536))
      ->type_name("N");
  add_recipe_words(*command, options->words);
  add_network(*command, options->network);
  for (const char* flag : {"--recipe", "--method", "--set", "--network"})
    command->get_option(flag)->group("With --nodes");
  command->callback([options, &session] {
    session.only_prints = options->html.empty();
    session.run = [options, &session] { return run(*options, session.globals); };
  });
}

}  // namespace llmq::tools

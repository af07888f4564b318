// llmq quantize: a recipe, and flags that override it, as one job (job/quantize_job.h).
#include "base/error.h"
#include "export/formats/output_format.h"
#include "job/documents/run_metrics.h"
#include "job/quantize_job.h"
#include "tools/command.h"
#include "tools/flags/devices_option.h"
#include "tools/flags/gate_files.h"
#include "tools/flags/recipe_words.h"
#include "tools/help.h"
#include "tools/interrupt.h"
#include "tools/node_words.h"
#include "tools/print.h"
#include "tools/quantize_words.h"
#include "tools/version.h"

namespace llmq::tools {
namespace {

struct QuantizeOptions {
  RecipeWords words;
  std::string model, output, target_bits, split_max_size, vision, metrics_out, network;
  GateFiles gate_files;
  std::optional<std::string> devices;
  bool dry_run = false, overwrite = false, strict = false, resume = false, restart = false,
       allow_nonfinite = false, paranoid = false, portable = false, direct_io = false;
};

Recipe resolve_recipe(const QuantizeOptions& options) {
  Recipe recipe = named_recipe(options.words);
  if (!options.target_bits.empty()) recipe.set("target_bits=" + options.target_bits);
  if (!options.split_max_size.empty())
    recipe.set(fmt::format("shard_bytes={}", parse_bytes(options.split_max_size, "--split-max-size")));
  if (!options.vision.empty()) recipe.set("vision=" + options.vision);
  if (options.portable) recipe.portable = true;
  if (!options.model.empty()) recipe.model = options.model;
  if (!options.output.empty()) recipe.output = options.output;
  need_given(!recipe.model.empty(), "model", "--model");
  need_given(!recipe.methods.empty(), "method", "--method");
  need_given(!recipe.output.empty(), "output directory", "--output");
  return recipe;
}

JobSettings settings_of(const QuantizeOptions& options, const Recipe& recipe, const Session& session) {
  const GlobalOptions& globals = session.globals;
  JobSettings settings;
  settings.compute = chosen_compute(globals, settings.compute);
  settings.evaluation_compute = chosen_compute(globals, settings.evaluation_compute);
  settings.memory_limit = parse_bytes(globals.memory_limit, "--memory-limit");
  settings.program = this_program(session);
  settings.on_step = throw_if_interrupted;
  settings.shared_by = session.ranks;
  settings.devices =
      chosen_devices(globals, options.devices ? parse_devices(*options.devices) : std::vector<int>(),
                     wanted_arithmetic(recipe), DeviceUse::kCalibration);
  return settings;
}

int show_end(const JobEnd& end, const QuantizeOptions& options, const Session& session) {
  const int code = job_exit_code(end.document, options.strict);
  write_metrics(system_io(), options.metrics_out, end.document, code, this_program(session));
  write_gate_files(options.gate_files, end.document, options.strict);
  if (session.globals.json)
    print_json(end.document);
  else if (end.unchanged)
    print_line(
        fmt::format("{}: unchanged, {} from the same job{}", end.unchanged->directory.string(),
                    end.document.at("digest").as_string(),
                    job_exit_code(end.document, false) == 0 ? "" : "; a gate of its evaluation was NOT met"));
  else
    print_outcome(end.outcome);
  return code;
}

void check(const QuantizeOptions& options, const Recipe& recipe) {
  if (!options.network.empty() && !options.dry_run)
    fail(ErrorKind::kUsage, {"the speed of the network changes the plan's words alone",
                             {},
                             "--network",
                             "add --dry-run, or leave it out"});
  network_of(options.network);
  if (!is_one_file(recipe.format)) return;
  if (options.devices)
    fail(ErrorKind::kUnsupported,
         {"a GGUF output is made on one device", recipe.source, "--devices", "leave it out"});
}

// Of several ranks all begin or none, and rank 0 shows what came of it.
int run_job(const QuantizeOptions& options, const Session& session, std::string& output) {
  std::optional<QuantizeJob> job;
  const auto prepare = [&] {
    if (options.resume && options.restart)
      fail(ErrorKind::kUsage, {"a run goes on or starts again", {}, "--resume --restart", "leave one out"});
    const Recipe recipe = resolve_recipe(options);
    output = recipe.output;
    check(options, recipe);
    const QuantizeRequest request = {recipe,           options.overwrite,
                                     options.restart,  options.allow_nonfinite,
                                     options.paranoid, options.direct_io};
    job.emplace(system_io(), request, settings_of(options, recipe, session));
  };
  begin_together(session.shared(), prepare, [&] {
    const bool computes = !options.dry_run || job->form().outline().chooses_bits;
    return computes ? job->facts() : std::vector<Fact>();
  });
  if (options.dry_run) {
    job->choose_bits();
    if (!session.is_first()) return 0;
    return show_plan(*job, session.shared().size(), network_of(options.network), session.globals.json);
  }
  const JobEnd end = job->run();
  return session.is_first() ? show_end(end, options, session) : 0;
}

int run(const QuantizeOptions& options, const Session& session) {
  watch_signals();
  std::string output;
  try {
    return run_job(options, session, output);
  } catch (const Interrupted& signal) {
    if (session.ranks != nullptr) throw;  // it ends the others, too
    return report_interrupted(output, signal, session);
  }
}

}  // namespace

void add_quantize(CLI::App& app, Session& session) {
  auto options = std::make_shared<QuantizeOptions>();
  CLI::App* command = declare_command(
      app, "quantize", "Turn a checkpoint into a packed INT4, INT8, FP8 or FP4 one",
      "  llmq quantize --method awq --recipe recipes/qwen32b.yaml\n"
      "  llmq quantize --method awq --model DIR --output out/model-awq --set scheme=w4a16_g64_asym\n"
      "  llmq quantize --method awq,gptq --model DIR --output out/model-best --set scheme=w4a16_g64_asym\n"
      "  llmq quantize --method imatrix --model DIR --output out/model.gguf --set format=gguf --set "
      "scheme=q4_k_m\n"
      "  llmq quantize --recipe recipes/smollm2.yaml --dry-run\n");
  add_recipe_words(*command, options->words);
  command
      ->add_option("--target-bits", options->target_bits,
                   "Mixed precision: choose each linear's bits within this many stored bits per weight")
      ->type_name("N");
  command->add_option("--vision", options->vision, "Round the vision tower, too: w8a16, and never fewer bits")
      ->type_name("SCHEME");
  command->add_option("--model", options->model, "Model to quantize: directory, .gguf file or hub name")
      ->type_name("MODEL");
  command->add_option("--output", options->output, "Directory, or .gguf file, to write")->type_name("DIR");
  command
      ->add_option("--split-max-size", options->split_max_size,
                   "Several files, each with this many bytes of tensors at most, e.g. 2GB: of a GGUF "
                   "NAME-00001-of-00003.gguf and so on; of a directory the shards, which are of 5 GB without")
      ->type_name("SIZE");
  add_devices_option(*command, options->devices);
  command->add_flag("--dry-run", options->dry_run, "Print the plan with its memory, disk and work, and stop");
  add_network(*command, options->network);
  command->add_flag("--overwrite", options->overwrite, "Replace an earlier output of llmq");
  command->add_flag("--strict", options->strict, "Exit 3 when any module fell back to another method");
  command->add_flag("--allow-nonfinite", options->allow_nonfinite,
                    "Go on when a weight holds NaN or infinity");
  command
      ->add_option("--metrics-out", options->metrics_out,
                   "Directory for the run's figures: metrics.json and llmq.prom (Prometheus)")
      ->type_name("DIR");
  add_gate_files(*command, options->gate_files);
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
  command->callback([options, &session] {
    session.shares_work = true;
    session.run = [options, &session] {
      if (!session.is_first()) options->gate_files = {};
      if (options->dry_run) return run(*options, session);
      return run_with_gate_files(options->gate_files, "quantize", [&] { return run(*options, session); });
    };
  });
}

}  // namespace llmq::tools

#include "tools/bench/matrix_options.h"

#include <cmath>

#include "base/error.h"

namespace llmq::tools {

std::vector<const CLI::Option*> add_matrix_flags(CLI::App& command, MatrixBench& o) {
  const std::vector<CLI::Option*> added = {
      command
          .add_option("--quantized", o.quantized,
                      "The quantized form of the model; without it only the baseline is measured")
          ->type_name("MODEL"),
      command
          .add_option("--text", o.text,
                      "Text whose perplexity is the quality; WikiText-2's test split when left out")
          ->type_name("FILE"),
      command.add_option("--max-windows", o.max_windows, "Windows of it that are scored")
          ->type_name("N")
          ->capture_default_str(),
      command
          .add_option("--ttft-target", o.ttft_ms,
                      "Milliseconds until the first token (p95) that a deployment may take; "
                      "100,300,1000,3000 when left out")
          ->delimiter(',')
          ->type_name("MS,...")
          ->allow_extra_args(false),
      command
          .add_option("--quality-tolerance", o.tolerance_percent,
                      "Percent by which its perplexity may be above the baseline's; 0,1,5,20 when left out")
          ->delimiter(',')
          ->type_name("X,...")
          ->allow_extra_args(false)};
  for (CLI::Option* option : added) option->group("Suite matrix");
  return {added.begin(), added.end()};
}

void check_matrix(const ServeBench& load, const MatrixBench& options) {
  const auto refuse = [](const std::string& what, const char* flag, const std::string& hint) {
    fail(ErrorKind::kUsage, {what, {}, flag, hint});
  };
  check_load(load);
  if (options.quantized.empty() && !load.engine.draft.draft.empty())
    refuse("the draft guesses for the quantized model, and none is given", "--draft",
           "add --quantized MODEL");
  if (options.max_windows < 1)
    refuse(fmt::format("{} windows", options.max_windows), "--max-windows", "give 1 or more");
  for (const double target : options.ttft_ms)
    if (!(target > 0 && std::isfinite(target)))
      refuse(fmt::format("{} ms until the first token", target), "--ttft-target",
             "give positive milliseconds");
  for (const double tolerance : options.tolerance_percent)
    if (!(tolerance >= 0 && std::isfinite(tolerance)))
      refuse(fmt::format("a tolerance of {} %", tolerance), "--quality-tolerance",
             "give percent of the baseline's perplexity, 0 or more");
}

DecisionTargets targets_of(const MatrixBench& options) {
  DecisionTargets targets;
  if (!options.ttft_ms.empty()) targets.ttft_seconds.clear();
  for (const double target : options.ttft_ms) targets.ttft_seconds.push_back(1e-3 * target);
  if (!options.tolerance_percent.empty()) targets.tolerances.clear();
  for (const double tolerance : options.tolerance_percent) targets.tolerances.push_back(1e-2 * tolerance);
  return targets;
}

}  // namespace llmq::tools

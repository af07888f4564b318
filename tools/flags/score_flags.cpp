#include "tools/flags/score_flags.h"

#include <cmath>

#include "base/error.h"
#include "base/json_text.h"
#include "tools/print.h"

namespace llmq::tools {
namespace {

std::string score_cell(const Json& row, const char* key) {
  const Json& value = row.at(key);
  return value.is_number() ? number_text(value.as_double(), 6) : "-";
}

void print_scores(const ScoreReport& made) {
  std::vector<std::vector<std::string>> rows = {
      {"task", "metric", "filter", "documents", "this model", "±", "original"}};
  for (const Json& row : made.scores.at("rows").items())
    rows.push_back({text_at(row, "task"), text_at(row, "metric"), text_at(row, "filter"),
                    score_cell(row, "asked"), score_cell(row, "value"), score_cell(row, "standard_error"),
                    score_cell(row, "baseline")});
  print_table(rows);
  for (const Gate& gate : made.gates) print_line(gate_text(gate));
  for (const std::string& file : made.written) print_line("written: " + file);
}

void check_score_flags(const ScoreFlags& flags, const std::vector<std::string>& outputs) {
  const ScoreRequest& request = flags.request;
  const auto refuse = [](const char* message, const char* flag, const char* hint) {
    fail(ErrorKind::kUsage, {message, {}, flag, hint});
  };
  if (request.results.empty())
    refuse("there are no results to report", "--lm-eval", "give the results_*.json of lm-eval");
  if (outputs.size() != 1)
    refuse("results are of one model", "--lm-eval", "name one output, and report the others one by one");
  if (request.max_drop && request.baseline.empty())
    refuse("a drop needs something to drop from", "--max-acc-drop", "add --lm-eval-baseline FILE");
  if (request.max_drop && !(std::isfinite(*request.max_drop) && *request.max_drop >= 0))
    refuse("that is no limit", "--max-acc-drop", "give a share of right answers, such as 0.01");
}

}  // namespace

void add_score_options(CLI::App& command, ScoreFlags& flags) {
  const char* group = "Task scores";
  ScoreRequest& request = flags.request;
  command
      .add_option("--lm-eval", request.results,
                  "Results of lm-evaluation-harness (results_*.json) for this output: into report.json, "
                  "report.html, README.md and the manifest")
      ->group(group)
      ->type_name("FILE");
  command.add_option("--lm-eval-baseline", request.baseline, "The same of the original, shown beside them")
      ->group(group)
      ->type_name("FILE");
  command
      .add_option("--max-acc-drop", request.max_drop,
                  "Exit 3 when acc, acc_norm or exact_match of a task is lower than the original's by more "
                  "than this (0.01: one in a hundred)")
      ->group(group)
      ->type_name("X");
  command
      .add_option("--lm-eval-model", request.model,
                  "What the results call this model, where that is not the output's own name")
      ->group(group)
      ->type_name("NAME");
  command
      .add_option("--eval-results", request.hub_results,
                  "Write what the hub reads from a repository's .eval_results into this directory: a file "
                  "for GSM8K, MMLU-Pro and GPQA each, where every document was asked")
      ->group(group)
      ->type_name("DIR");
}

int report_scores(ScoreFlags flags, const std::vector<std::string>& outputs, const GlobalOptions& globals) {
  check_score_flags(flags, outputs);
  flags.request.output = outputs.front();
  const ScoreReport made = llmq::report_scores(system_io(), flags.request);
  if (globals.json)
    print_json(Json::object({{"schema", "llmq.task-scores/1"},
                             {"output", made.output.string()},
                             {"scores", made.scores},
                             {"written", text_list(made.written)}}));
  else
    print_scores(made);
  return all_met(made.gates) ? 0 : 3;
}

}  // namespace llmq::tools

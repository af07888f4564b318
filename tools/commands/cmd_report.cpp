// llmq report OUTPUT...: an output's own page again, several outputs side by side, or what others measured of
// one put into its documents.
#include "export/report/comparison.h"
#include "export/report/html_report.h"
#include "tools/command.h"
#include "tools/flags/score_flags.h"
#include "tools/help.h"
#include "tools/print.h"

namespace llmq::tools {
namespace {

struct ReportOptions {
  std::vector<std::string> outputs, measured;
  std::string html, vega;
  ScoreFlags scores;
};

std::string open_text(const std::optional<double>& value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "-";
}
std::string open_bytes(const std::optional<double>& value) { return value ? figure_bytes_text(*value) : "-"; }

void print_comparison(const Comparison& comparison) {
  std::vector<std::vector<std::string>> rows = {{"output", "scheme", "method", "size", "bits/weight",
                                                 "whole model", "ppl change", "KL mean", "tokens/s", "memory",
                                                 "Pareto"}};
  for (const ComparedOutput& o : comparison.outputs)
    rows.push_back({o.name, o.scheme, o.method, open_bytes(o.bytes), open_text(o.bits_per_weight, 3),
                    open_text(o.bits_total, 3), open_text(o.delta_ppl, 4),
                    open_text(o.kl, 5) + (o.kl && o.kl_stderr ? fmt::format(" ± {:.5f}", *o.kl_stderr) : ""),
                    open_text(o.decode_tokens_per_second, 1), open_bytes(o.run_peak_bytes),
                    o.on_pareto_line ? "yes" : ""});
  print_table(rows);
  print_line("-: not measured");
  for (const std::string& warning : comparison.warnings) print_line("warning: " + warning);
  for (const std::string& note : comparison.notes) print_line("note: " + note);
}

std::string own_page(const ReportOptions& options) {
  return make_html_report(read_output_report(system_io(), options.outputs.front()));
}

int run_report(const ReportOptions& options, const GlobalOptions& globals) {
  Io& io = system_io();
  if (options.scores.asked()) {
    if (!options.measured.empty() || !options.vega.empty())
      fail(ErrorKind::kUsage, {"goes with several outputs side by side, and scores with one",
                               {},
                               options.vega.empty() ? "--measured" : "--vega",
                               "run llmq report twice: first with --lm-eval, then with the figure"});
    const int code = report_scores(options.scores, options.outputs, globals);
    if (!options.html.empty()) write_text_atomically(io, options.html, own_page(options));
    return code;
  }
  const Comparison comparison = compare_outputs(io, options.outputs, options.measured);
  if (!options.html.empty())
    write_text_atomically(io, options.html,
                          options.outputs.size() == 1 && options.measured.empty()
                              ? own_page(options)
                              : comparison_page(comparison));
  if (!options.vega.empty())
    write_text_atomically(io, options.vega, comparison_vega(comparison).dump(1) + "\n");
  if (globals.json)
    print_json(comparison.to_json());
  else
    print_comparison(comparison);
  return 0;
}

}  // namespace

void add_report(CLI::App& app, Session& session) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command = declare_command(
      app, "report", "Put outputs side by side, or scores of tasks into one's report and card",
      "  llmq report out/model-rtn out/model-awq out/model-gptq --html compare.html\n"
      "  llmq eval-ppl out/model-rtn out/model-awq --against DIR --json >measured.json\n"
      "  llmq report out/model-rtn out/model-awq --measured measured.json --vega compare.json\n"
      "  llmq report out/model-awq --html report.html\n"
      "  llmq report out/model-awq --lm-eval results.json --lm-eval-baseline original.json "
      "--max-acc-drop 0.01\n");
  command->add_option("outputs", options->outputs, "Outputs of llmq quantize: directories or .gguf files")
      ->required()
      ->type_name("");
  command
      ->add_option("--measured", options->measured,
                   "What llmq eval-ppl --json or llmq bench --json printed of the outputs, for what their "
                   "reports do not say")
      ->type_name("FILE")
      ->allow_extra_args(false);
  command
      ->add_option("--html", options->html,
                   "Write a page with the figure and the table; of one output, its report")
      ->type_name("FILE");
  command->add_option("--vega", options->vega, "Write the figure as a Vega-Lite specification")
      ->type_name("FILE");
  add_score_options(*command, options->scores);
  command->callback([options, &session] {
    session.run = [options, &session] { return run_report(*options, session.globals); };
  });
}

}  // namespace llmq::tools

// llmq report OUTPUT: puts into an output's report and card what others measured of it.
#include "tools/command.h"
#include "tools/help.h"
#include "tools/score_flags.h"

namespace llmq::tools {
namespace {

struct ReportOptions {
  std::vector<std::string> outputs;
  ScoreFlags scores;
};

}  // namespace

void add_report(CLI::App& app, Session& session) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command =
      declare_command(app, "report", "Put scores of tasks into an output's report and card",
                      "  llmq report out/model-awq --lm-eval results.json\n"
                      "  llmq report out/model-awq --lm-eval results.json --lm-eval-baseline original.json "
                      "--max-acc-drop 0.01\n");
  command->add_option("outputs", options->outputs, "Output of llmq quantize: a directory or a .gguf file")
      ->required()
      ->type_name("");
  add_score_options(*command, options->scores);
  command->callback([options, &session] {
    session.run = [options, &session] {
      return report_scores(options->scores, options->outputs, session.globals);
    };
  });
}

}  // namespace llmq::tools

// `llmq report OUTPUT --lm-eval FILE`: scores of tasks into the documents of one output.
#pragma once
#include <string>
#include <vector>

#include "job/documents/score_report.h"
#include "tools/command.h"

namespace llmq::tools {

struct ScoreFlags {
  ScoreRequest request;
  bool asked() const {
    return !request.results.empty() || !request.baseline.empty() || !request.model.empty() ||
           request.max_drop.has_value() || !request.hub_results.empty();
  }
};

void add_score_options(CLI::App& command, ScoreFlags& flags);

// The exit code: 3 where a gate was not met. Error(kUsage) for flags that do not go together, and for several
// outputs.
int report_scores(ScoreFlags flags, const std::vector<std::string>& outputs, const GlobalOptions& globals);

}  // namespace llmq::tools

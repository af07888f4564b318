// Scores of tasks in the documents of an output that is finished: the section of its card, and what the hub
// reads as results of a benchmark.
//
// `scores` is what report.json keeps (evaluate/task_scores.h): {model, harness, date, baseline, rows: [...]}.
// Names in it are somebody else's; Markdown and YAML of them are escaped.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace llmq {

// `card` with the section "Task scores" before "How it was made", or in the place of an earlier one of that
// name.
std::string card_with_scores(const std::string& card, const Json& scores);

// Files of a model repository's `.eval_results/`, by name: one for each benchmark of the hub that was asked
// in full. Shares are per cent there.
// https://huggingface.co/docs/hub/eval-results
std::vector<std::pair<std::string, std::string>> hub_results(const Json& scores);

}  // namespace llmq

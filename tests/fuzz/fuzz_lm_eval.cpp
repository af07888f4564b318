// Any bytes as results of lm-evaluation-harness: either an Error, or scores that the documents of an output
// take, where a name is no more than a name.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "evaluate/task_scores.h"
#include "export/report/html_report.h"
#include "export/report/score_documents.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace llmq;
  try {
    const TaskScores scores = parse_task_scores({reinterpret_cast<const char*>(data), size}, "results.json");
    if (scores.tasks.empty() || scores.model.empty()) std::abort();
    for (const TaskScore& task : scores.tasks)
      if (task.metrics.empty()) std::abort();
    const Json kept = to_json(scores, &scores);
    const std::string card = card_with_scores("# a\n\n## How it was made\n", kept);
    if (card_with_scores(card, kept) != card) std::abort();  // an earlier section is replaced
    Json report = Json::object({{"task_scores", kept}});
    if (make_html_report(report).find("<script") != std::string::npos) std::abort();
    hub_results(kept);
    for (const AccuracyDrop& one : accuracy_drops(scores, scores, "results.json", "results.json"))
      if (one.drop != 0) std::abort();
  } catch (const Error&) {
  }
  return 0;
}

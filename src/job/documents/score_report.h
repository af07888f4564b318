// Scores that lm-evaluation-harness measured of a finished output, put into its documents: report.json,
// report.html, the card README.md, and the manifest that has their digests; beside a .gguf its report and
// manifest.
//
// Files that loaders read stay as they are, and so does the output's digest. A signature would no longer be
// true, so a signed output is refused.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/io.h"
#include "base/json.h"
#include "job/evaluation.h"

namespace llmq {

struct ScoreRequest {
  std::string output;              // a directory, plain or versioned (its latest is meant), or a .gguf file
  std::string results, baseline;   // files; the second may be empty
  std::string model;               // what the results call this output; empty: by its own name
  std::optional<double> max_drop;  // of a share of right answers, 0.01: one in a hundred
  std::string hub_results;         // directory for the hub's `.eval_results`; empty: none
};

struct ScoreReport {
  Path output;  // the version, of a versioned one
  Json scores;  // as report.json keeps them
  std::vector<Gate> gates;
  std::vector<std::string> written;
};

// Error(kBadInput) where the results are of another model, or the output is not one of llmq. Writes nothing
// then.
ScoreReport report_scores(Io& io, const ScoreRequest& request);

}  // namespace llmq

// A recipe's `evaluate`: perplexity of the written files and their divergence from the original, held against
// the limits that the recipe sets.
#pragma once
#include <string>
#include <vector>

#include "job/evaluation.h"
#include "job/job_settings.h"
#include "quant/recipe/recipe.h"

namespace llmq {

struct OutputEvaluation {
  Evaluation evaluation;
  std::vector<Gate> gates;
};

// Reads `output` back from disk, as a user would; and `original` again, where it was read past the page
// cache.
OutputEvaluation evaluate_output(const EvaluateRequest& asked, const std::string& output,
                                 const LoadedModel& original, const JobSettings& settings);

Json evaluation_json(const OutputEvaluation& evaluated, const std::string& original);

}  // namespace llmq

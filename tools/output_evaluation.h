// A recipe's `evaluate`: perplexity of the written files and their divergence from the original, held against
// the limits that the recipe sets; as JSON and as the lines that close a run.
#pragma once
#include "calibration/calibration_text.h"
#include "quant/recipe/recipe.h"
#include "tools/command.h"
#include "tools/loaded_model.h"

namespace llmq::tools {

struct OutputEvaluation {
  Evaluation evaluation;
  std::vector<Gate> gates;
};

// Reads `output` back from disk, as a user would; and `original` again, where it was read past the page
// cache.
OutputEvaluation evaluate_output(const EvaluateRequest& asked, const std::string& output,
                                 const LoadedModel& original, const std::shared_ptr<Backend>& backend,
                                 const GlobalOptions& globals);

Json evaluation_json(const OutputEvaluation& evaluated, const std::string& original);

// The figures and gates; without an evaluation, the command that would make one.
void print_evaluation(const std::optional<OutputEvaluation>& evaluated, const Recipe& recipe);

// What the calibration was; null where none was needed.
Json calibration_json(const Recipe& recipe, const CalibrationSet& calibration);

}  // namespace llmq::tools

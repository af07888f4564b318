// The measuring pass of mixed precision, wherever a recipe becomes a plan: a dry run and a rebuild make it too.
#pragma once
#include "calibration/calibration_text.h"
#include "quant/plan.h"
#include "tools/command.h"
#include "tools/loaded_model.h"

namespace llmq::tools {

// `plan` gets its schemes and, with them, its costs.
void choose_bits(Plan& plan, const Recipe& recipe, const LoadedModel& model,
                 const CalibrationSet& calibration, Backend& backend, const GlobalOptions& globals);

}  // namespace llmq::tools

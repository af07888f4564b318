// The measuring pass of mixed precision, wherever a recipe becomes a plan: a dry run and a rebuild make it
// too.
#pragma once
#include "base/json.h"
#include "calibration/calibration_text.h"
#include "quant/plan/plan.h"
#include "tools/command.h"
#include "tools/loaded_model.h"

namespace llmq::tools {

// `plan` gets its schemes and, with them, its costs. `known`: what the pass of an interrupted run found
// (measured_json()), or null; with it nothing is measured. What the schemes were chosen by.
struct BitChoice {
  Json measured;
  bool taken_up = false;  // from `known`
};
BitChoice choose_bits(Plan& plan, const Recipe& recipe, const LoadedModel& model,
                      const CalibrationSet& calibration, Backend& backend, const GlobalOptions& globals,
                      const Json& known = Json());

}  // namespace llmq::tools

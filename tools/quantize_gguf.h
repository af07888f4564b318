// The part of llmq quantize that writes a GGUF: recipe -> plan -> importance -> one file, its report beside
// it; then the recipe's own evaluation.
#pragma once
#include "quant/plan/gguf_plan.h"
#include "quant/recipe/recipe.h"
#include "tools/command.h"
#include "tools/loaded_model.h"

namespace llmq::tools {

struct GgufQuantizeFlags {
  bool dry_run = false, overwrite = false, restart = false, paranoid = false, direct_io = false;
  std::string metrics_out;
};

GgufRequest gguf_request(const Recipe& recipe, const GgufPlan& plan, const OutputTarget& target);
// Importance, where the plan has one, and every tensor; the output has no name yet.
GgufWritten write_gguf(const GgufPlan& plan, const CalibrationSet& calibration, const LoadedModel& model,
                       Backend& backend, GgufOutput& output);

// Exit code. The report lies beside the file as NAME.gguf.report.json.
int quantize_to_gguf(const Recipe& recipe, const GgufQuantizeFlags& flags, const Session& session);

}  // namespace llmq::tools

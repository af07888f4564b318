#include "tools/bit_choice.h"

#include "quant/mixed_precision.h"
#include "tools/interrupt.h"

namespace llmq::tools {

void choose_bits(Plan& plan, const Recipe& recipe, const LoadedModel& model,
                 const CalibrationSet& calibration, Backend& backend, const GlobalOptions& globals) {
  choose_precision(plan, model.checkpoint, model.spec, calibration, backend, throw_if_interrupted);
  settle_costs(plan, recipe.source, model.checkpoint, model.spec, backend.threads(),
               parse_bytes(globals.memory_limit, "--memory-limit"));
}

}  // namespace llmq::tools

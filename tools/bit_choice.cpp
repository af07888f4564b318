#include "tools/bit_choice.h"

#include "quant/mixed_precision/mixed_precision.h"
#include "quant/mixed_precision/sensitivity.h"
#include "tools/interrupt.h"

namespace llmq::tools {

BitChoice choose_bits(Plan& plan, const Recipe& recipe, const LoadedModel& model,
                      const CalibrationSet& calibration, Backend& backend, const GlobalOptions& globals,
                      const Json& known) {
  std::optional<std::vector<MeasuredGroup>> measured = read_measured(known, plan);
  const bool taken_up = measured.has_value();
  if (!taken_up)
    measured =
        measure_candidates(plan, model.checkpoint, model.spec, calibration, backend, throw_if_interrupted);
  choose_precision(plan, *measured, model.checkpoint);
  settle_costs(plan, recipe.source, model.checkpoint, model.spec, backend.threads(),
               parse_bytes(globals.memory_limit, "--memory-limit"));
  return {measured_json(*measured), taken_up};
}

}  // namespace llmq::tools

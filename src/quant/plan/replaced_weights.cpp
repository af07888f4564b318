#include "quant/plan/replaced_weights.h"

namespace llmq {

std::set<std::string> replaced_weights(std::span<const PlannedModule> modules, const ModelSpec& spec) {
  std::set<std::string> planned, weights;
  for (const PlannedModule& m : modules) {
    planned.insert(m.module);
    if (spec.carried.carries(m.module)) weights.insert(m.module + ".weight");  // of a tower
  }
  for (const BlockSpec& block : spec.blocks)
    for (const LinearSpec& linear : block.linears)
      if (planned.count(linear.module) != 0) weights.insert(linear.weight.tensor);
  return weights;
}

}  // namespace llmq

// Bits by budget: which linears get few bits, which many, which stay as they are, so that the divergence that
// was measured for each choice (sensitivity.h) adds up to the least within a number of bits per weight. The
// candidates are numbers of bits for one scheme, or whole schemes.
//
// Bits are counted as stored: codes, scales, zeros; a linear left dense counts with its stored type. The
// average is over every linear that the recipe quantizes, those left dense by the choice among them.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "io/checkpoint.h"
#include "tensor/planned_module.h"

namespace llmq {

struct ChosenLinear;
struct MeasuredGroup;
struct ModelSpec;
struct Plan;
struct Recipe;

inline constexpr int kDenseBits = 16;  // among candidates: left as it is

// What every linear of a plan may get.
struct PrecisionCandidate {
  int bits = 0;                        // of a code
  std::string scheme;                  // its name, where whole schemes are chosen among
  std::vector<PlannedModule> modules;  // the plan's, in their order, with it; empty: left as it is
  bool stays_dense() const { return modules.empty(); }
};

struct PrecisionOption {
  int bits = 0;
  std::string scheme;        // as of the candidate
  std::uint64_t stored = 0;  // bits of all the group's linears
  double gram_loss = 0;      // sum of tr(dW G dW^T)
  double divergence = 0;     // estimated KL from the original when this group alone is rounded so, in nats
};

// Linears that get the same scheme: those that engines run as one product; and of a layer all experts, for
// vLLM takes the scheme of the first one's gate, up and down for the whole stack, and refuses others.
struct PrecisionChoice {
  std::vector<std::string> modules;
  std::int64_t experts = 0;  // whose linears they are; 0: of no expert
  std::uint64_t weights = 0;
  std::vector<PrecisionOption> options;
  std::size_t chosen = 0;
};

struct MixedPrecision {
  double target_bits = 0, bits_per_weight = 0;
  double divergence = 0, uniform_divergence = 0;  // estimated: as chosen, and all at the fewest bits
  bool optimal = true;                            // proven the best within the budget
  std::vector<PrecisionChoice> choices;           // in model order
  Json to_json() const;
};

// The candidates of a plan for `chosen`, its modules' linears: the recipe's, or those of 4, 8 and 16 bits
// that the format can mix. Error(kUsage) when the budget is below what the fewest bits take (naming what
// would do) or pays for leaving everything dense; Error(kUnsupported) for a candidate that the format cannot
// store, that the method does not round, or whose inputs are rounded to integers, which is not measured.
std::vector<PrecisionCandidate> resolve_candidates(const Recipe& recipe, const Plan& plan,
                                                   const Checkpoint& checkpoint,
                                                   const std::vector<ChosenLinear>& chosen);

// The choice by what was measured (sensitivity.h) for the modules; plan_with_bits() makes a plan of it.
// Measured groups that get the same scheme are one choice, and their losses add up.
MixedPrecision choose_precision(const Plan& plan, const ModelSpec& spec,
                                const std::vector<MeasuredGroup>& measured, const Checkpoint& checkpoint);

}  // namespace llmq

// The schemes of a plan: what a recipe leaves open settled for each linear, and what methods and engines want
// of several schemes side by side.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "model/model_spec.h"
#include "quant/plan/plan.h"

namespace llmq {

// A linear that is quantized, and what was asked for it.
struct ChosenLinear {
  const LinearSpec* linear;
  SchemeRequest request;
};

// The modules of a plan, in the order of `chosen`: what was asked for, with what the recipe leaves open
// settled as the plan's method and the recipe's format have it. Error(kUsage) naming the linear that a group
// does not divide, with the groups that would; Error(kUnsupported) for zeros that the format cannot have.
std::vector<PlannedModule> resolve_modules(const Recipe& recipe, const Plan& plan,
                                           const Checkpoint& checkpoint,
                                           const std::vector<ChosenLinear>& chosen);

// Error(kUnsupported) where columns are to stay at 16 bits and the format has no place for them.
void check_kept_columns(const Recipe& recipe);

// Error(kUnsupported) for floats in groups that the method does not round, and where it chooses the codes of
// none of `modules`.
void check_float_codes(const Recipe& recipe, std::span<const PlannedModule> modules, const Plan& plan);
// Says which linears the method leaves to rounding to nearest, for it chooses other codes.
void warn_of_plain_rounding(Plan& plan);

// Of a recipe that rotates values: Error(kUsage) where a budget might leave linears dense that are rotated; a
// warning where these may have schemes that were measured to gain nothing.
void check_rotated_schemes(const Recipe& recipe, const ModelSpec& spec, Plan& plan);

// Error(kUsage) where overrides give linears that an engine runs as one, or the experts of a layer, different
// schemes of which one is no integer, naming them. Integers of several forms, and what `ignore` leaves dense,
// are left to the table of loaders.
void check_fused_sets(const Recipe& recipe, const ModelSpec& spec, const Plan& plan);

}  // namespace llmq

// The schemes of a plan: what a recipe leaves open settled for each linear, and what methods and engines want
// of several schemes side by side.
#pragma once
#include <optional>
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

// The largest of 128, 64, 32 that divides every linear whose group is open; nothing: none does.
std::optional<int> default_group(const std::vector<ChosenLinear>& chosen);

// The scheme of `c`, one of `all`, whose scales have the type of weights; `open_group`: default_group() of
// them. Error(kUsage) naming the linear where a group does not divide it, with the groups that would.
QuantScheme resolve_scheme(const ChosenLinear& c, const std::vector<ChosenLinear>& all,
                           std::optional<int> open_group, const std::string& source, bool symmetric);

// Error(kUnsupported) for floats in groups that the method does not round, and for fp8 alone beside a method
// that chooses other codes. Beside others fp8 is rounded to nearest, which a warning says.
void check_float_codes(const Recipe& recipe, Plan& plan);

// Error(kUsage) where overrides give linears that an engine runs as one different schemes, naming them all.
// What `ignore` leaves dense is left to the table of loaders.
void check_fused_sets(const Recipe& recipe, const ModelSpec& spec, const Plan& plan);

}  // namespace llmq

// Which of the estimated schemes to take.
#pragma once
#include <optional>
#include <vector>

#include "quant/plan/capacity_estimate.h"
#include "tensor/quant_scheme.h"

namespace llmq {

inline constexpr const char* kOriginalScheme = "original";

// Fills `recommended` and `reason`. `packed`: of each scheme, that of its first linear where it is llmq's
// own.
void recommend_scheme(Estimate& estimate, const std::vector<std::optional<QuantScheme>>& packed);

}  // namespace llmq

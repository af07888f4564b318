// The baseline of AWQ's paper (Lin et al. 2023, table 1): the input channels whose mean |x| is largest stay
// as they were, everything else is rounded to nearest, in ranges over all columns, as the paper's program
// does it.
//
//   kept = the max(1, floor(share K)) channels of largest mean |x|, the first of equals;
//   W'[:, k] = W[:, k] for k in kept, RTN(W)[:, k] elsewhere
//
// No packed format stores such a matrix. Cost: that of rounding.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "quant/methods/method.h"

namespace llmq {

// Rising.
std::vector<std::int32_t> salient_columns(std::span<const double> mean_absolute, double share);

std::unique_ptr<Method> make_salient_rounding(double share, Compute compute);

}  // namespace llmq

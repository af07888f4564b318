// SmoothQuant (Xiao et al. 2023): part of what makes activations hard to round moves into the weights.
//
//   s_k = max|x_k|^alpha / max|w_k|^(1 - alpha),  x' = x / s,  W' = W diag(s)
//
// with the maximum over all readers' rows; both maxima at least 1e-5. Channels of one producer share s.
#pragma once
#include <vector>

#include "quant/scale_problem.h"

namespace llmq {

struct SmoothQuantOptions {
  double alpha = 0.5;
  bool operator==(const SmoothQuantOptions&) const = default;
};

std::vector<float> smooth_scales(const ScaleProblem& problem, const SmoothQuantOptions& options);

}  // namespace llmq

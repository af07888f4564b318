// SmoothQuant (Xiao et al. 2023): part of what makes activations hard to round moves into the weights.
//
//   s_k = max|x_k|^alpha / max|w_k|^(1 - alpha),  x' = x / s,  W' = W diag(s)
//
// with the maximum over all readers' rows; both maxima at least 1e-5, s scaled to a geometric mean of 1.
// Channels of one producer share s; a channel that was never active keeps s = 1.
//
// Without a given alpha, candidates are judged by what both roundings add to the readers' outputs y = x W^T,
// on sampled tokens t, relative to those outputs:
//
//   loss(s) = sum_t h_t sum_k (s_k Q(x'_tk) - x_tk)^2 m_k + sum_n sum_k (Q(W'_nk) / s_k - W_nk)^2 g_k
//   m_k = sum_n W_nk^2,  g_k = sum_t h_t x_tk^2,  E_t = sum_k x_tk^2 m_k,  h_t = 1 / (E_t + median E)
//
// Errors of different channels count as independent, which makes a candidate cost one rounding of the sampled
// rows, O((tokens + rows) K), no product of matrices. h_t keeps a few tokens with huge outputs, whose
// absolute errors are as huge and matter as little, from deciding for all. Candidates: the identity, 21
// alphas with the largest |x_k| and with its root mean square in its place, and descent on log s from the
// best of them. What goes over rows is a device's where it can (quant/methods/smoothquant/sampled_rows.h),
// with the same bits.
#pragma once
#include <vector>

#include "device/backend.h"
#include "quant/methods/scale_problem.h"
#include "quant/methods/smoothquant/smoothquant_options.h"

namespace llmq {

// What both roundings cost under given scales: the parts of loss(s), over sum_t h_t E_t.
struct SmoothLoss {
  double activations = 0, weights = 0;
  double whole() const { return activations + weights; }
};

struct SmoothScales {
  std::vector<float> s;
  SmoothLoss loss, identity_loss;  // zero without sampled rows
  bool identity = false;
};

// Error(kInternal) where a search is asked for without sampled rows.
SmoothScales search_smooth_scales(const ScaleProblem& problem, const SmoothQuantOptions& options,
                                  Backend& backend);
SmoothLoss smooth_loss(const ScaleProblem& problem, std::span<const float> s, Backend& backend);

}  // namespace llmq

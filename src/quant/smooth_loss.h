// The loss of quant/smoothquant.h for any scales, and its descent.
#pragma once
#include <vector>

#include "base/threads.h"
#include "quant/smoothquant.h"

namespace llmq {

class SmoothJudge {
 public:
  SmoothJudge(const ScaleProblem& problem, ThreadPool& pool);

  SmoothLoss loss(std::span<const float> s) const;
  double input_loss(std::span<const float> s) const;  // loss().activations alone
  // Root mean square of each channel over the sampled tokens, weighted by h.
  std::vector<float> typical_inputs() const;
  // Scales near `s` with a lower expected loss, were every rounding error uniform in its step:
  //
  //   F(s) = 1/12 [ sum_t h_t d_t^2 sum_k s_k^2 m_k + sum_n d_n^2 sum_k g_k / s_k^2 ]
  //
  // d_t the step of token t, max_k |x'_tk| / top, d_n that of a weight row; gradient steps on log s, the maximum
  // softened to the p-norm of p = 16.
  std::vector<float> descend(std::vector<float> s) const;

 private:
  struct WeightRow {
    const float* values;
    const QuantScheme* scheme;
    float share;  // how many rows it stands for
  };
  double activation_loss(std::span<const float> s) const;
  double weight_loss(std::span<const float> s) const;
  double add_gradient(std::span<const float> s, std::span<double> gradient) const;

  const ScaleProblem& problem_;
  ThreadPool& pool_;
  const QuantScheme& scheme_;  // of the activations: all readers agree
  std::size_t channels_;
  std::vector<WeightRow> rows_;
  std::vector<double> token_weight_;   // h
  std::vector<double> weight_energy_;  // m
  std::vector<double> input_energy_;   // g
  double energy_ = 0;                  // sum_t h_t E_t
};

}  // namespace llmq

// The loss of quant/methods/smoothquant/smoothquant.h for any scales, and its descent.
#pragma once
#include <vector>

#include "base/threads.h"
#include "quant/methods/smoothquant/sampled_rows.h"
#include "quant/methods/smoothquant/smoothquant.h"

namespace llmq {

class SmoothLossFunction {
 public:
  // Rows are judged on the backend, where one is given that can, with the host's bits.
  SmoothLossFunction(const ScaleProblem& problem, ThreadPool& pool, Backend* backend = nullptr);
  SmoothLossFunction(const SmoothLossFunction&) = delete;

  SmoothLoss loss(std::span<const float> s) const;
  double input_loss(std::span<const float> s) const;  // loss().activations alone
  // Root mean square of each channel over the sampled tokens, weighted by h.
  std::vector<float> typical_inputs() const;
  // Scales near `s` with a lower expected loss, were every rounding error uniform in its step:
  //
  //   F(s) = 1/12 [ sum_t h_t d_t^2 sum_k s_k^2 m_k + sum_n d_n^2 sum_k g_k / s_k^2 ]
  //
  // d_t the step of token t, max_k |x'_tk| / top, d_n that of a weight row; gradient steps on log s, the
  // maximum softened to the p-norm of p = 16.
  std::vector<float> descend(std::vector<float> s) const;

 private:
  // sum over rows of weight * step^2, the steps' maxima softened, and each channel's share in it.
  struct Steps {
    double sum = 0;
    std::vector<double> share;
  };
  void sample_weights();
  void weigh_tokens();
  Steps steps_of(SmoothRows::Side side, std::span<const double> factor) const;
  double activation_loss(std::span<const float> s) const;
  double weight_loss(std::span<const float> s) const;
  double add_gradient(std::span<const float> s, std::span<double> gradient) const;

  const ScaleProblem& problem_;
  ThreadPool& pool_;
  SmoothProblem sampled_;
  std::vector<double> token_weight_;  // h
  double share_ = 1;                  // how many rows of weights a sampled one stands for
  double energy_ = 0;                 // sum_t h_t E_t
  std::unique_ptr<SmoothRows> rows_;  // of what was sampled
};

}  // namespace llmq

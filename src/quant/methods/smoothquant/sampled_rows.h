// What the loss of quant/methods/smoothquant/smooth_loss.h and its descent take of sampled rows for scales s:
// everything that goes over rows. The host's threads take a row at a time; a device that can holds all rows
// (quant/methods/smoothquant/device_rows.h). The bits are the same.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/threads.h"
#include "device/backend.h"
#include "tensor/quant_scheme.h"

namespace llmq {

struct SampledRows {
  std::vector<const float*> values;  // `channels` numbers each
  std::vector<double> step_weight;   // of the square of a row's step
};

struct SmoothProblem {
  std::size_t channels = 0, group = 0;       // columns of one step of the inputs
  const QuantScheme* activations = nullptr;  // of all inputs
  SampledRows inputs, weights;
  std::vector<const QuantScheme*> weight_scheme;    // one object for all rows that share it
  std::vector<double> weight_energy, input_energy;  // per channel

  std::size_t groups() const { return group == 0 ? 0 : (channels + group - 1) / group; }
};

class SmoothRows {
 public:
  enum class Side { kInputs, kWeights };

  virtual ~SmoothRows() = default;
  // sums[t * groups + g] = sum over group g of weight_energy_k (s_k Q(x_tk / s_k) - x_tk)^2, of one scale for
  // all where given: of floats in groups, the global one of two levels.
  virtual void input_errors(std::span<const float> s, std::span<const float> inverse,
                            std::optional<float> scale, std::span<double> sums) = 0;
  // sums[n] = sum_k input_energy_k (Q(W_nk s_k) / s_k - W_nk)^2.
  virtual void weight_errors(std::span<const float> s, std::span<const float> inverse,
                             std::span<double> sums) = 0;
  // Of |rows| times factor, their maxima softened: each row's step_weight times the maximum's square, and
  // each channel's share in their sum.
  virtual void soften(Side side, std::span<const double> factor, std::span<double> energy,
                      std::span<double> share) = 0;
};

// sum over rows of kRowsTogether at a time.
double sum_of_rows(std::span<const double> rows);
// Every n-th of `all` rows of weights is judged.
std::size_t sampled_stride(std::size_t all);
// On the backend where it can, else by the pool. The problem stays where it is.
std::unique_ptr<SmoothRows> make_smooth_rows(const SmoothProblem& problem, ThreadPool& pool,
                                             Backend* backend);

}  // namespace llmq

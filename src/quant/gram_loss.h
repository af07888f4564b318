// What a change of weights costs on the calibration inputs, row by row, without running them:
//
//   loss[n] = d[n] G d[n]^T = sum_t (x_t . d[n])^2,   d = W_quantized - W,  G = sum_t x_t^T x_t
//
// Rows are made a chunk at a time by the callers' function and judged by Backend::quadratic_form: nothing of
// the size of W is kept. Cost: 2 K^2 products per row.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/threads.h"
#include "calibration/input_stats.h"
#include "device/backend.h"
#include "tensor/quantized_matrix.h"

namespace llmq {

class GramLoss {
 public:
  // `gram` is a full symmetric square [channels, channels]; products in `compute`.
  GramLoss(std::span<const float> gram, std::int64_t channels, Backend& backend, Compute compute);
  GramLoss(const InputStats& stats, Backend& backend, Compute compute)
      : GramLoss(stats.gram_square(), stats.channels(), backend, compute) {}

  // loss[i] for i in [0, loss.size()): make_row(i, d) writes the `channels` differences of item i; called
  // from the pool's threads.
  void evaluate(std::span<double> loss, const std::function<void(std::int64_t item, float* d)>& make_row,
                ThreadPool& pool);

 private:
  Backend& backend_;
  std::int64_t channels_, chunk_;
  std::unique_ptr<PreparedWeight> gram_;
  Buffer rows_;                 // F32 [chunk, channels] on the device
  std::vector<float> staging_;  // the same on the host where the device's memory is closed to it
};

// loss of each row of `matrix` against the weight it came from, differences times in_scale per channel where
// given; and of the weight itself, tr(W G W^T), for
// relative errors.
std::vector<double> row_losses(const QuantizedMatrix& matrix, std::span<const float> weight, GramLoss& gram,
                               ThreadPool& pool, std::span<const float> in_scale = {});
double output_energy(std::span<const float> weight, std::int64_t rows, std::int64_t channels, GramLoss& gram,
                     ThreadPool& pool);
double sum_in_order(std::span<const double> values);

}  // namespace llmq

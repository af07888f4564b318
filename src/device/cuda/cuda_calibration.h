// Calibration's sums on a CUDA device.
#pragma once
#include <memory>
#include <span>

#include "device/cuda/cuda_work.h"
#include "device/gram_total.h"

namespace llmq {

// Backend::gram, drain_gram (which leaves g as it is) and channel_stats.
void accumulate_gram(const CudaWork& work, const TensorView& g, const TensorView& x);
void add_gram(CudaWork& work, ExactSums& triangle, const TensorView& g);
void sum_channels(const CudaWork& work, const TensorView& x, std::span<double> absolute_sum,
                  std::span<float> absolute_max);

class CudaGramTotals final : public GramTotals {
 public:
  explicit CudaGramTotals(CudaWork& work) : work_(work) {}
  std::unique_ptr<GramTotal> gram_total(std::int64_t channels) override;

 private:
  CudaWork& work_;
};

}  // namespace llmq

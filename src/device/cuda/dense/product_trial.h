// Whether a library's product has the bits of the own kernels, tried before it is used, and how long it
// takes.
//
// The operands are random numbers of mixed sizes: some different rows of x and of w, repeated to as many as
// are asked for, so that the own kernels multiply few rows and every place of every tile is looked at. What a
// tensor core does with a sum follows from its order alone, so that more numbers would show nothing else.
#pragma once
#include <cstdint>

#include "device/cuda/cuda_work.h"
#include "device/cuda/dense/dense_library.h"

namespace llmq {

inline constexpr std::int64_t kTrialRows = 256;  // numbers of rows are tried in its multiples

class ProductTrial {
 public:
  ProductTrial(CudaWork& work, const DenseShape& full);  // rows: a multiple of kTrialRows
  // Whether so many rows, a multiple of kTrialRows, have the own kernels' bits.
  bool passes(DensePlan& plan, std::int64_t rows);
  double seconds(DensePlan& plan);  // of the full shape

 private:
  CudaWork& work_;
  const DenseShape shape_;
  const Buffer w_, x_, y_;
  Buffer own_;  // F32 [different rows of x, features]
};

// The same of panels of Gram matrices of so many rows and channels, `stride` apart and at most `most` rows
// high, that begin at multiples of kTrialRows. Channels are kTrialRows different ones, repeated.
class PanelTrial {
 public:
  PanelTrial(CudaWork& work, const GramPanel& square, std::int64_t most);
  bool passes(PanelPlan& plan, const GramPanel& panel);

 private:
  CudaWork& work_;
  const std::int64_t channels_;
  const Buffer x_, panel_;
  Buffer own_;  // F32 [kTrialRows, channels]: row i has those of all i + n kTrialRows
};

}  // namespace llmq

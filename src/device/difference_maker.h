// What rounding to nearest changes in rows of a weight, made in the device's memory
// (kernels/common/row_difference.h) with the bits that the host makes (quant/methods/rounding.h):
// Extensions::difference_maker.
#pragma once
#include "kernels/common/row_difference.h"

namespace llmq {

class DifferenceMaker {
 public:
  virtual ~DifferenceMaker() = default;
  virtual void make_differences(const RowDifferences& rows) = 0;
};

}  // namespace llmq

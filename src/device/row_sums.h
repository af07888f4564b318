// Sums over rows in a device's memory (kernels/common/row_sums.h), with the bits of the host's
// (quant/methods/smoothquant/sampled_rows.cpp): what SmoothQuant's search asks of its sampled rows, as
// Extensions::row_sums. Pointers are the device's. Everything happens in the order of the calls.
#pragma once
#include "kernels/common/row_sums.h"

namespace llmq {

class RowSums {
 public:
  virtual ~RowSums() = default;
  virtual void sum_input_errors(const InputErrors& errors) = 0;
  virtual void sum_squares(const RowSquares& squares) = 0;
  virtual void soften_rows(const SoftRows& rows) = 0;
  virtual void share_columns(const ColumnShares& shares) = 0;  // of rows that were softened
};

}  // namespace llmq

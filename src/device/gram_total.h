// The sum of many Gram matrices where they are made: what Backend::drain_gram() does in the host's memory, on
// a device, so that only the last sum comes down: Extensions::gram_totals. Both are the real sum, rounded
// once (tensor/exact_sums.h): the same bits.
#pragma once
#include <cstdint>
#include <memory>

#include "tensor/exact_sums.h"
#include "tensor/tensor_view.h"

namespace llmq {

// One triangle of channels * (channels + 1) / 2 numbers, 0 at first. Not longer than its backend.
class GramTotal {
 public:
  virtual ~GramTotal() = default;
  virtual void drain(const TensorView& g) = 0;   // as Backend::drain_gram()
  virtual void read(ExactSums& into) const = 0;  // into += the sum, rows from the diagonal on
};

class GramTotals {
 public:
  virtual ~GramTotals() = default;
  // Null where the device has no room for it.
  virtual std::unique_ptr<GramTotal> gram_total(std::int64_t channels) = 0;
};

}  // namespace llmq

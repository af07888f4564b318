// a + b without loss: the rounded sum, and what rounding left out of it, which is an FP64 number, too
// (TwoSum: Knuth 1969; Dekker 1971). Six additions. Always-inlined.
#pragma once
#include <cstdint>

#include "kernels/common/anywhere.h"

namespace llmq {

// total += value; the answer is (total before + value) - total, exactly. NaN where the sum is not finite.
LLMQ_ANYWHERE double add_exactly(double& total, double value) {
  const double sum = total + value, part = sum - total;
  const double error = (total - (sum - part)) + (value - part);
  total = sum;
  return error;
}

// totals[i] += values[i], errors[i] what rounding left out; false where all of that is 0. Bits are or'ed, as
// compilers do not take a comparison in vectors.
template <class From>
LLMQ_ANYWHERE bool add_run_exactly(double* __restrict totals, double* __restrict errors,
                                   const From* __restrict values, int64_t count) {
  uint64_t any = 0;
  for (int64_t i = 0; i < count; ++i) {
    double total = totals[i];
    const double error = add_exactly(total, static_cast<double>(values[i]));
    totals[i] = total;
    errors[i] = error;
    any |= __builtin_bit_cast(uint64_t, error);
  }
  return any != 0;
}

}  // namespace llmq

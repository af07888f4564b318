// A Gram matrix H in a device's memory, its columns in the order of places, with all that GPTQ makes of it
// made there: what quant/methods/gptq/factorization.h and column_panels.h do in the host's memory. The
// triangle goes up once, and of K^2 numbers nothing comes down; on the host the same work takes H through
// memory some ten times, which for 25,600 channels was three seconds of a block (H100, 16 cores).
//
//   H + lambda I = R R^T,  R upper triangular        L = R diag(1 / R_kk)
//
// The factor is the device's library's, in FP64, as Factorizer's; every other number is the host's bit for
// bit: FP64 until it is rounded to FP32 once. Memory on the device: 4 K^2 bytes for the triangle, 8 K^2 for
// the factor until unit_upper(), 2 K^2 for L, 4 K^2 for a square.
#pragma once
#include <cstdint>
#include <span>

#include "device/column_block.h"
#include "tensor/buffer.h"

namespace llmq {

// Of each place its column, or ~column where H has 1 on the diagonal instead of what it has.
using PlacedOrder = std::span<const std::int32_t>;

// Not longer than its backend.
class PlacedGram {
 public:
  virtual ~PlacedGram() = default;
  // False where a pivot is not positive and finite: again with a greater lambda.
  virtual bool factorize(PlacedOrder order, double lambda) = 0;
  // After factorize() was true, once: L by blocks, FP32, zeros below the diagonal. diagonal[k] = R_kk.
  virtual Buffer unit_upper(std::span<const ColumnBlock> blocks, std::span<double> diagonal) = 0;
  // H + lambda I by blocks, FP32.
  virtual Buffer square(PlacedOrder order, double lambda, std::span<const ColumnBlock> blocks) = 0;
};

}  // namespace llmq

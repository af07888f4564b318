// A library's dense products in the memory of a device: BF16 numbers, FP32 sums. cuBLASLt on a device
// (cublaslt.cpp), stand-ins in tests.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/half.h"

namespace llmq {

// Features, columns and channels are multiples of kDenseStep, rows lie one after another, and all operands
// at multiples of kDenseAlignment bytes.
inline constexpr std::int64_t kDenseStep = 8, kDenseAlignment = 16;

// y [rows, features] = x [rows, columns] w[features, columns]^T
struct DenseShape {
  std::int64_t rows = 0, features = 0, columns = 0;
};

// An algorithm for a weight's shape.
class DensePlan {
 public:
  virtual ~DensePlan() = default;
  virtual std::string text() const = 0;  // "algorithm 66, tile 20, stages 35"
  // Whether it multiplies so many rows, at most those that it was made for.
  virtual bool takes(std::int64_t rows) const = 0;
  virtual void multiply(float* y, const BFloat16* x, const BFloat16* w, std::int64_t rows) = 0;
};

// Rows [first, first + count) of a Gram matrix g [channels, channels] of x [rows, channels], from column
// `first` on: it is added to what is there. Rows of g are `stride` apart, a multiple of kDenseStep.
struct GramPanel {
  std::int64_t rows = 0, channels = 0, stride = 0, first = 0, count = 0;
};

// An algorithm for a panel.
class PanelPlan {
 public:
  virtual ~PanelPlan() = default;
  virtual std::string text() const = 0;
  virtual void add(float* panel, const BFloat16* x) = 0;  // panel: g[first][first]
};

// All calls are in the order of the device's work. Error(kDevice), or Error(kResource) for want of memory,
// names call and sizes; of an algorithm that is tried it refuses that one alone.
class DenseLibrary {
 public:
  virtual ~DenseLibrary() = default;
  virtual std::string name() const = 0;  // "cuBLASLt 13.1.0"
  // Numbers of the least weight, or square, that gains by it what it takes to try it.
  virtual std::int64_t least_numbers() const { return std::int64_t{1} << 22; }
  // What it offers that divides no sum among blocks, as far as it tells; the best first, by its own account.
  virtual std::vector<std::unique_ptr<DensePlan>> plans(const DenseShape& full) = 0;
  virtual std::vector<std::unique_ptr<PanelPlan>> plans(const GramPanel& panel) = 0;
};

}  // namespace llmq

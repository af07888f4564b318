// Cholesky factors by a device, in FP64: what device/cholesky.h does in the host's memory, where the host's
// K^3 / 3 operations would be most of a run: Extensions::factorizer. The bits are the library's own, so
// Backend::arithmetic() names it.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "device/cholesky.h"
#include "device/placed_gram.h"

namespace llmq {

// L of A = L L^T, where it was made. Not longer than its backend.
class DeviceFactor {
 public:
  virtual ~DeviceFactor() = default;
  virtual void read(LowerTriangle& factor) const = 0;    // of the matrix's size
  virtual void solve(std::span<double> rows) const = 0;  // as solve_rows()
};

class Factorizer {
 public:
  virtual ~Factorizer() = default;
  // Why the host factorizes all the same; empty where the device does.
  virtual std::string why_the_host() const = 0;
  // Null where a pivot is not positive and finite. Error(kResource) where the device has no room for K^2
  // numbers and what the library needs beside them: to factorize elsewhere then would make the bits depend on
  // what else the device holds. Not from two threads at once.
  virtual std::unique_ptr<DeviceFactor> factorize(const LowerTriangle& matrix) = 0;
  // The Gram matrix of this triangle, rows from the diagonal on, for what rounding makes of it.
  // Error(kResource) as above.
  virtual std::unique_ptr<PlacedGram> place(std::span<const double> triangle, std::int64_t channels) = 0;
};

}  // namespace llmq

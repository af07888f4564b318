// The factor that rounding with error feedback needs, in FP64:
//
//   H + lambda I = R R^T,  R upper triangular        (Cholesky from the last column to the first: no inverse)
//
// L = R diag(1 / R_kk) is unit upper triangular and carries errors forward, R_kk^2 is what an error left in
// column k costs: tr(D (H + lambda I) D^T) = sum_k R_kk^2 (D L)_k^2.
//
// lambda = damp * mean(diag H). Where that leaves a pivot that is not positive, lambda is raised tenfold, at
// most kMostRaises times; how often is part of the result. Cost: K^3 / 3 operations, 4 K^2 bytes.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "device/backend.h"
#include "device/factorizer.h"

namespace llmq {

inline constexpr int kMostRaises = 8;

// What a factor is for: its numbers, or (H + lambda I)^-1, for which it stays on the device that made it.
enum class FactorUse : std::uint8_t { kNumbers, kSolving };

struct Factorization {
  // The lower Cholesky factor of H + lambda I stands here, rows and columns from last to first, unless it
  // stays on_device.
  LowerTriangle reversed;
  double lambda = 0;
  int raises = 0;
  std::unique_ptr<DeviceFactor> on_device = nullptr;

  double upper(std::int64_t i, std::int64_t j) const {  // R, i <= j
    const std::int64_t last = reversed.size() - 1;
    return reversed.row(last - i)[last - j];
  }
  // rows [count][reversed.padded()], whose columns run from last to first, becomes rows (H + lambda I)^-1, as
  // solve_rows().
  void solve(std::span<double> rows, ThreadPool& pool) const;
};

// lambda, and how often it was raised, until `factor` is true of it. mean_diagonal is that of the columns
// that are alive. Error(kBadInput) where no lambda does: the statistics are then no Gram matrix, or not
// finite.
struct Damping {
  double lambda = 0;
  int raises = 0;
};
Damping raise_until(double damp, double mean_diagonal, const std::function<bool(double lambda)>& factor);

// The backend as what factorizes; null where the host does.
Factorizer* factorizer_of(Backend& backend);
// Says that the host factorizes although the backend is a device, and why; empty where the device does.
std::string host_factorization(Backend& backend);

// element(i, j) of H, read for i >= j; errors as raise_until(). A backend that is a Factorizer does it.
Factorization factorize(std::int64_t size, double damp, double mean_diagonal,
                        const std::function<double(std::int64_t, std::int64_t)>& element, Backend& backend,
                        FactorUse use = FactorUse::kNumbers);

}  // namespace llmq

#include "quant/methods/gptq/factorization.h"

#include <algorithm>

#include "base/error.h"

namespace llmq {
namespace {

constexpr double kLeastRaise = 1e-4;  // of the mean diagonal, where lambda was smaller

}  // namespace

Factorizer* factorizer_of(Backend& backend) {
  Factorizer* const device = backend.extensions().factorizer;
  return device != nullptr && device->why_the_host().empty() ? device : nullptr;
}

std::string host_factorization(Backend& backend) {
  const Factorizer* const device = backend.extensions().factorizer;
  if (device == nullptr || device->why_the_host().empty()) return {};
  return "the host factorizes in place of the device: " + device->why_the_host();
}

void Factorization::solve(std::span<double> rows, ThreadPool& pool) const {
  if (on_device)
    on_device->solve(rows);
  else
    solve_rows(reversed, rows, pool);
}

Damping raise_until(double damp, double mean_diagonal, const std::function<bool(double lambda)>& factor) {
  Damping found{mean_diagonal > 0 ? damp * mean_diagonal : 1};
  for (;; found.lambda = std::max(10 * found.lambda, kLeastRaise * mean_diagonal), ++found.raises) {
    if (factor(found.lambda)) return found;
    if (found.raises == kMostRaises)
      fail(ErrorKind::kBadInput,
           {fmt::format("the inputs' Gram matrix has no Cholesky factor, not even with lambda = {:g} ({:g} "
                        "times the mean of its diagonal)",
                        found.lambda, found.lambda / mean_diagonal),
            {},
            {},
            "the calibration inputs are not finite or the statistics are damaged; take them again"});
  }
}

Factorization factorize(std::int64_t size, double damp, double mean_diagonal,
                        const std::function<double(std::int64_t, std::int64_t)>& element, Backend& backend,
                        FactorUse use) {
  Factorizer* const device = factorizer_of(backend);
  ThreadPool& pool = backend.workers();
  Factorization result{LowerTriangle(size)};
  const Damping found = raise_until(damp, mean_diagonal, [&](double lambda) {
    pool.parallel_for(static_cast<std::size_t>(size), [&](std::size_t item, int) {
      const auto i = static_cast<std::int64_t>(item);
      double* const row = result.reversed.row(i);
      for (std::int64_t j = 0; j <= i; ++j) row[j] = element(size - 1 - j, size - 1 - i);
      row[i] += lambda;
    });
    if (device == nullptr) return cholesky_lower(result.reversed, pool);
    result.on_device = device->factorize(result.reversed);
    return result.on_device != nullptr;
  });
  result.lambda = found.lambda;
  result.raises = found.raises;
  if (result.on_device && use == FactorUse::kNumbers) {
    result.on_device->read(result.reversed);
    result.on_device.reset();
  }
  return result;
}

}  // namespace llmq

#include "quant/methods/awq/salient_columns.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "quant/methods/rtn.h"

namespace llmq {
namespace {

class SalientRounding final : public Method {
 public:
  SalientRounding(double share, Compute compute) : share_(share), compute_(compute) {}
  QuantizedMatrix quantize(const RoundingProblem& problem, Backend& backend) const override {
    if (problem.stats == nullptr) fail(ErrorKind::kInternal, "salient columns are found by statistics");
    ThreadPool& pool = backend.workers();
    QuantizedMatrix matrix =
        round_to_nearest(problem.weight, problem.out_features, problem.in_features, problem.scheme, pool);
    matrix.kept_columns = salient_columns(problem.stats->mean_absolute(), share_);
    for (std::int64_t n = 0; n < problem.out_features; ++n)
      for (const std::int32_t k : matrix.kept_columns)
        matrix.kept_weights.push_back(problem.weight[static_cast<std::size_t>(n * problem.in_features + k)]);
    matrix.loss = rounding_loss(problem, matrix, backend, compute_);
    return matrix;
  }

 private:
  double share_;
  Compute compute_;
};

}  // namespace

std::vector<std::int32_t> salient_columns(std::span<const double> mean_absolute, double share) {
  std::vector<std::int32_t> columns(mean_absolute.size());
  std::iota(columns.begin(), columns.end(), 0);
  const auto wanted = static_cast<std::size_t>(share * static_cast<double>(columns.size()));
  const std::size_t kept = std::clamp<std::size_t>(wanted, 1, columns.size());
  std::stable_sort(columns.begin(), columns.end(), [&](std::int32_t a, std::int32_t b) {
    return mean_absolute[static_cast<std::size_t>(a)] > mean_absolute[static_cast<std::size_t>(b)];
  });
  columns.resize(kept);
  std::sort(columns.begin(), columns.end());
  return columns;
}

std::unique_ptr<Method> make_salient_rounding(double share, Compute compute) {
  return std::make_unique<SalientRounding>(share, compute);
}

}  // namespace llmq
